"""The shared HTTP model adapter: one request, retried while waiting may cure the failure.

Address, key and timeouts are checked before anything is sent. Waits are bounded, responses are limited in size, and
redirects are not followed. The API key is sent in the request headers and appears nowhere else: in no name and no
error. Usage is summed over all attempts, failed ones included.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from ipaddress import ip_address
from typing import Any, ClassVar, TypedDict
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

import httpx2
import msgspec

from holdfast.core.effects import compute_retry_delay
from holdfast.core.numbers import is_number
from holdfast.core.wire.formats import Format
from holdfast.core.wire.stream import StreamAccumulator
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model import exchange
from holdfast.model.exchange import DeltaRelay, Fault, ListenerError
from holdfast.ports import Clock
from holdfast.records.messages import Delta, Message, ModelCall, ModelReply
from holdfast.records.usage import Usage
from holdfast.system import SystemClock, SystemIds

TIMEOUT, ATTEMPTS, PATIENCE = 120.0, 8, 60.0
SHORTEST_WAIT = 0.5
ANSWERED_LIMIT = 3
"""Attempts that the provider worked on, and may charge for, before the call fails."""


class HttpModelOptions(TypedDict, total=False):
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
        if not is_number(attempts, least=1):
            raise InvalidValue(f"attempts must be a whole number of 1 or more, not {attempts!r:.40}.")
        self._model, self._attempts = model, attempts
        for name, seconds, least in (("timeout", timeout, 0.001), ("patience", patience, 0)):
            if not is_number(seconds, least=least, most=86_400, whole=False):
                raise InvalidValue(f"{name} must be seconds, from {least:g} to 86400, not {seconds!r:.40}.")
        self._timeout, self._patience = float(timeout), float(patience)
        self._base_url, self._api_key = base_url, None if api_key is None else check_key(api_key, "api_key")
        self._read_connection()
        self._options, self._stream = dict(options or {}), stream
        self._headers = {name: check_key(value, f"The header {name}") for name, value in (headers or {}).items()}
        self._clock: Clock = clock or SystemClock()
        self._ids = SystemIds(self._clock)
        self._sleep = sleep or asyncio.sleep
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self._model

    @property
    def identity(self) -> str:
        """A digest of the model's name, address and credentials, which changes if one of them does."""
        try:
            url, key = self._read_connection()
        except InvalidValue as error:
            return str(error)
        told = [self.name, url, sorted(self._build_headers("", key).items())]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        """Call the model, retrying while that may help; raise ModelFailed with the reason if there is no reply."""
        try:
            url, key = self._read_connection()
        except InvalidValue as error:
            raise ModelFailed(f"The model {self.name} cannot be called: {error}", kind="unauthorised") from None
        if not key and self._api_key is None and not self._headers and not _is_loopback(urlsplit(url).hostname or ""):
            raise ModelFailed(
                f"The model {self.name} needs a key. Give api_key=…, or set {self.key_variable}; any word will do for "
                "a server that wants none.",
                kind="unauthorised",
            )
        body = msgspec.json.encode(self._build_body(asked))
        headers = self._build_headers(asked.call, key)
        voice, began, answered = DeltaRelay(say), self._clock.monotonic(), 0
        used: Usage | None = None
        for attempt in range(1, self._attempts + 1):
            try:
                message, finish, now = await self._attempt(url, body, headers, asked, voice)
                usage = _add_usage(used, now) or Usage()
                return ModelReply(message=message, usage=usage, finish=finish, attempts=attempt)
            except ListenerError as stray:
                raise stray.error from None
            except Fault as caught:
                fault = caught
            # Raised outside the except block: a driver's error as context would hold the request with its key.
            used = _add_usage(used, fault.usage)
            answered += fault.kind in exchange.ANSWERED_KINDS
            wait = None if answered >= ANSWERED_LIMIT else self._retry_delay(fault, attempt, began)
            if wait is None:
                raise self._build_error(fault, attempt, used, voice, key)
            voice.restart()
            await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections of the running event loop. Closing twice is fine."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # Hooks for adapters

    def _build_body(self, asked: ModelCall) -> dict[str, Any]:
        raise NotImplementedError

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def _make_accumulator(self, asked: ModelCall) -> StreamAccumulator:
        return StreamAccumulator(self.form)

    def _finish_response(self, whole: dict[str, Any], asked: ModelCall) -> dict[str, Any]:
        return whole

    def _merge_options(self, asked: ModelCall, **fixed: Any) -> dict[str, Any]:
        """Return a request's options: the adapter's own, the model's, then the call's, without those that are None."""
        options = {**fixed, **self._options, **asked.options}
        return {name: value for name, value in options.items() if value is not None}

    # One attempt

    async def _attempt(
        self, url: str, body: bytes, headers: dict[str, str], asked: ModelCall, voice: DeltaRelay
    ) -> tuple[Message, str | None, Usage | None]:
        pieces = self._make_accumulator(asked)
        answer = await exchange.send_request(self._get_client(), url, body, headers, pieces, voice, self._clock.now_ms)
        whole = self._finish_response(answer, asked)
        message, finish = exchange.parse_reply(whole, self.form)
        voice.finish(message)
        return message, finish, exchange.response_usage(whole)

    def _get_client(self) -> httpx2.AsyncClient:
        """Return the client of the running event loop. Connections belong to the loop in which they were opened."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            limits = httpx2.Timeout(self._timeout, connect=min(self._timeout, 15.0), pool=None)
            pool = httpx2.Limits(max_keepalive_connections=20)
            client = self._clients[loop] = httpx2.AsyncClient(verify=_ssl_context(), timeout=limits, limits=pool)
        return client

    def _build_headers(self, call: str, key: str) -> dict[str, str]:
        # No compression: a response could unpack to more than any size limit.
        made = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            made |= self._key_headers(key)
        if call and call.isascii() and call.isprintable():
            made["Idempotency-Key"] = call
        return {**made, **self._headers}

    # Failures

    def _retry_delay(self, fault: Fault, attempt: int, began: float) -> float | None:
        """Return the seconds until the next attempt; None if there is to be none."""
        if not fault.retryable or attempt >= self._attempts:
            return None
        left = self._patience - (self._clock.monotonic() - began)
        if fault.after is not None and fault.after > max(left, 0.0):
            return None
        chance = int.from_bytes(self._ids.salt()[:4], "big") / 2**32
        wait = compute_retry_delay(attempt, chance, fault.after) / 1000
        if left > SHORTEST_WAIT:
            return min(wait, left)
        return wait if attempt == 1 and self._patience > 0 else None

    def _build_error(self, fault: Fault, attempt: int, used: Usage | None, voice: DeltaRelay, key: str) -> ModelFailed:
        times = f", {attempt} times" if attempt > 1 else ""
        unsent = fault.kind == "unauthorised" and not key and not self._headers
        advice = f"No key was sent. Give api_key=…, or set {self.key_variable}." if unsent else fault.advice
        why = self._redact(f"The model {self.name} gave no answer: {fault}{times}. {advice}", key)
        return ModelFailed(
            why, kind=fault.kind, retryable=fault.retryable, status=fault.status, usage=used, partial=voice.visible_text
        )

    def _redact(self, text: str, key: str) -> str:
        for secret in (key, *self._headers.values()):
            text = text.replace(secret, "…") if len(secret) > 3 else text
        return text

    # Address and key

    def _read_connection(self) -> tuple[str, str]:
        """Return the address and the key as they are now: a variable may be set or corrected while a client is open.

        Both are read together, so that a new key never goes to an old address.
        """
        given = self._api_key
        key = check_key(os.environ.get(self.key_variable), self.key_variable) if given is None else given
        return self._resolve_url(self._base_url), key

    def _resolve_url(self, given: str | None) -> str:
        url = (given or os.environ.get(self.address_variable) or self.address).rstrip("/")
        wrong = f"A model's address is like {self.address}"
        parts = split_address(url, wrong)
        if has_credentials(parts) or parts.fragment:
            raise InvalidValue(f"{wrong}: no names, keys, ? or # in it. Give the key as api_key=….")
        return f"{self._complete_url(url)}{self.path}"

    def _complete_url(self, url: str) -> str:
        return url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, at {urlsplit(self._read_connection()[0]).netloc})"


def _add_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    return other if one is None else one if other is None else one + other


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the machine's certificates, read once: loading takes longer than a request."""
    return httpx2.create_ssl_context()


def _is_loopback(host: str) -> bool:
    """Return True for this machine, where servers of local models want no key."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def split_address(url: str, wrong: str) -> SplitResult:
    """Split an http(s) URL with a host; otherwise raise an error that begins with `wrong`."""
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        raise InvalidValue(f"{wrong}. This one has no host, or no number as its port.") from None
    if parts.scheme not in {"http", "https"} or not named or not url.isprintable():
        raise InvalidValue(f"{wrong}. This one has no host, or is of another kind.")
    return parts


def has_credentials(parts: SplitResult) -> bool:
    """Return True if a URL holds a name, a password or a query, which may be a key."""
    return parts.username is not None or parts.password is not None or bool(parts.query)


def check_key(key: Any, name: str) -> str:
    """Return a key, or another header's value, that can be sent; empty if there is none."""
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key.strip() != key:
        raise InvalidValue(f"{name} must be one line of plain characters, without spaces around it.")
    return key
