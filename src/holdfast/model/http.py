"""The shared HTTP model adapter: one request, retried while waiting may cure the failure.

Address, key and timeouts are checked before anything is sent. Waits are bounded, responses are limited in size, and
redirects are not followed. The API key is sent in the request headers and appears nowhere else: in no name and no
error. Usage is summed over all attempts, failed ones included.

"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, ClassVar, TypedDict
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx2
import msgspec

from holdfast.core.effects import retry_ms
from holdfast.core.wire.formats import Format
from holdfast.core.wire.stream import Accumulator
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model.exchange import ANSWERED, CallersError, Fault, Voice, exchange, read, usage_of
from holdfast.ports import Clock
from holdfast.records.messages import Message
from holdfast.records.models import Delta, ModelCall, ModelReply
from holdfast.records.usage import Usage
from holdfast.system import SystemClock, SystemIds

TIMEOUT, ATTEMPTS, PATIENCE = 120.0, 8, 60.0
SHORTEST_WAIT = 0.5
MOST_ANSWERED = 3
"""Attempts that the provider worked on, and may charge for, before the call fails."""


class How(TypedDict, total=False):
    """The constructor options that all adapters share."""

    base_url: str | None
    api_key: str | None
    timeout: float
    attempts: int
    patience: float
    options: Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    stream: bool
    clock: Clock | None
    sleep: Callable[[float], Awaitable[object]] | None


class HttpModel:
    """The part that all adapters share.

    `timeout` is the number of seconds of silence that end an attempt. `patience` is the number of seconds after the
    start of a call in which it is retried (the first retry may come later), `attempts` the most attempts. `options`
    go into every request unchanged; None removes one. `headers` are extra headers, as some gateways need them.
    """

    form: ClassVar[Format]
    path: ClassVar[str]
    address: ClassVar[str]
    key_variable: ClassVar[str]
    address_variable: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        patience: float = PATIENCE,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip() or not model.isprintable() or len(model) > 200:
            raise InvalidValue("A model is given by its name, as in gpt-5-mini or claude-sonnet-4-5.")
        if type(attempts) is not int or attempts < 1:
            raise InvalidValue(f"attempts must be a whole number of 1 or more, not {attempts!r:.40}.")
        self._model, self._attempts = model, attempts
        self._timeout, self._patience = seconds(timeout, "timeout", 0.001), seconds(patience, "patience", 0.0)
        self._url = self._checked_url(base_url)
        self._key = checked_key(api_key if api_key is not None else os.environ.get(self.key_variable), "api_key")
        self._options, self._stream = dict(options or {}), stream
        self._headers = {name: checked_key(value, f"The header {name}") for name, value in (headers or {}).items()}
        self._clock: Clock = clock or SystemClock()
        self._ids = SystemIds(self._clock)
        self._sleep = sleep or asyncio.sleep
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self._model

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        """Call the model, retrying while that may help; raise ModelFailed with the reason if there is no reply."""
        self._check_key()
        body = msgspec.json.encode(self._body(asked))
        headers = self._headers_for(asked.call)
        voice, began, answered = Voice(say), self._clock.monotonic(), 0
        used: Usage | None = None
        for attempt in range(1, self._attempts + 1):
            try:
                message, finish, now = await self._once(body, headers, asked, voice)
                return ModelReply(message=message, usage=_sum(used, now) or Usage(), finish=finish, attempts=attempt)
            except CallersError as stray:
                raise stray.error from None
            except Fault as caught:
                fault = caught
            # Raised outside the except block: a driver's error as context would hold the request with its key.
            used = _sum(used, fault.usage)
            answered += fault.kind in ANSWERED
            wait = None if answered >= MOST_ANSWERED else self._wait(fault, attempt, began)
            if wait is None:
                raise self._failed(fault, attempt, used, voice)
            voice.begin_anew()
            await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections of the running event loop. Closing twice is fine."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # Hooks for adapters

    def _body(self, asked: ModelCall) -> dict[str, Any]:
        raise NotImplementedError

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def _pieces(self, asked: ModelCall) -> Accumulator:
        return Accumulator(self.form)

    def _settled(self, whole: dict[str, Any], asked: ModelCall) -> dict[str, Any]:
        return whole

    def _chosen(self, asked: ModelCall, **fixed: Any) -> dict[str, Any]:
        """Return a request's options: the adapter's own, the model's, then the call's, without those that are None."""
        options = {**fixed, **self._options, **asked.options}
        return {name: value for name, value in options.items() if value is not None}

    # One attempt

    async def _once(
        self, body: bytes, headers: dict[str, str], asked: ModelCall, voice: Voice
    ) -> tuple[Message, str | None, Usage | None]:
        pieces = self._pieces(asked)
        answer = await exchange(self._client(), self._url, body, headers, pieces, voice, self._clock.now_ms)
        whole = self._settled(answer, asked)
        message, finish = read(whole, self.form)
        voice.end(message)
        return message, finish, usage_of(whole)

    def _client(self) -> httpx2.AsyncClient:
        """Return the client of the running event loop. Connections belong to the loop in which they were opened."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            limits = httpx2.Timeout(self._timeout, connect=min(self._timeout, 15.0), pool=None)
            pool = httpx2.Limits(max_keepalive_connections=20)
            client = self._clients[loop] = httpx2.AsyncClient(verify=_trusted(), timeout=limits, limits=pool)
        return client

    def _headers_for(self, call: str) -> dict[str, str]:
        # No compression: a response could unpack to more than any size limit.
        made = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            made |= self._key_headers(self._key)
        if call and call.isascii() and call.isprintable():
            made["Idempotency-Key"] = call
        return {**made, **self._headers}

    # Failures

    def _wait(self, fault: Fault, attempt: int, began: float) -> float | None:
        """Return the seconds until the next attempt; None if there is to be none."""
        if not fault.retryable or attempt >= self._attempts:
            return None
        left = self._patience - (self._clock.monotonic() - began)
        if fault.after is not None and fault.after > max(left, 0.0):
            return None
        chance = int.from_bytes(self._ids.salt()[:4], "big") / 2**32
        wait = retry_ms(attempt, chance, fault.after) / 1000
        if left > SHORTEST_WAIT:
            return min(wait, left)
        return wait if attempt == 1 and self._patience > 0 else None

    def _failed(self, fault: Fault, attempt: int, used: Usage | None, voice: Voice) -> ModelFailed:
        times = f", {attempt} times" if attempt > 1 else ""
        why = self._without_key(f"The model {self.name} gave no answer: {fault}{times}. {fault.advice}")
        return ModelFailed(
            why,
            kind=fault.kind,
            retryable=fault.retryable,
            status=fault.status,
            usage=used,
            partial=voice.shown,
        )

    def _without_key(self, text: str) -> str:
        for secret in (self._key, *self._headers.values()):
            text = text.replace(secret, "…") if secret and len(secret) > 3 else text
        return text

    # Constructor arguments

    def _check_key(self) -> None:
        if not self._key and not self._headers and self._url.startswith(self.address):
            raise ModelFailed(
                f"The model {self.name} needs a key. Give api_key=…, or set {self.key_variable}.", kind="unauthorised"
            )

    def _checked_url(self, given: str | None) -> str:
        url = (given or os.environ.get(self.address_variable) or self.address).rstrip("/")
        return f"{self._rooted(checked_url(url, self.address))}{self.path}"

    def _rooted(self, url: str) -> str:
        return url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, at {urlsplit(self._url).netloc})"


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    return other if one is None else one if other is None else one + other


@cache
def _trusted() -> ssl.SSLContext:
    """Return the machine's certificates, read once: loading takes longer than a request."""
    return httpx2.create_ssl_context()


def checked_url(url: str, example: str) -> str:
    """Return the address if it is a plain http(s) URL with a host and without credentials, query or fragment."""
    wrong = f"A model's address is like {example}"
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        raise InvalidValue(f"{wrong}. This one has no host, or no number as its port.") from None
    if parts.scheme not in {"http", "https"} or not named or not url.isprintable():
        raise InvalidValue(f"{wrong}. This one has no host, or is of another kind.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidValue(f"{wrong}: no names, keys, ? or # in it. Give the key as api_key=….")
    return url


def checked_key(key: Any, name: str) -> str:
    """Return a key, or another header's value, that can be sent; empty if there is none."""
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key.strip() != key:
        raise InvalidValue(f"{name} must be one line of plain characters, without spaces around it.")
    return key


def seconds(value: Any, name: str, least: float) -> float:
    """Return a duration in seconds between `least` and one day."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 86_400:
        raise InvalidValue(f"{name} must be seconds, from {least:g} to 86400, not {value!r:.40}.")
    return float(value)
