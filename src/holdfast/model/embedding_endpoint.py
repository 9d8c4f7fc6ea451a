"""Embeddings from an endpoint that speaks OpenAI's wire: `POST <address>/embeddings`.

Waits are bounded, responses are limited in size, and redirects are not followed. The key is sent in the request header
and appears nowhere else: in no name and no error.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
from typing import Any
from urllib.parse import SplitResult

import msgspec

from holdfast.core.numbers import is_number
from holdfast.errors import InvalidValue
from holdfast.model.embedder_check import CheckedEmbedder, check_dimensions
from holdfast.model.http import check_key, has_credentials, split_address
from holdfast.ports import Clock
from holdfast.system import SystemClock

KEY_VARIABLE = "HOLDFAST_EMBEDDINGS_API_KEY"
TEXTS_AT_ONCE = 128
CHARACTERS_AT_ONCE = 200_000
"""Characters in one request; endpoints limit its tokens as well."""
MOST_BYTES = 64_000_000
MOST_ATTEMPTS, LONGEST_WAIT = 4, 20.0
ATTEMPTS_FOR_QUERY, LONGEST_WAIT_FOR_QUERY = 2, 2.0
"""Limits for a search, where a caller waits and a result from text alone is better than none."""
FIRST_WAIT = 0.5


class _EmbeddingItem(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _EmbeddingsResponse(msgspec.Struct):
    data: list[_EmbeddingItem]


class _EndpointBusy(Exception):
    """A failure after which the endpoint may accept the same request later."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class EndpointEmbedder(CheckedEmbedder):
    """A model behind an address such as `https://host/v1`; the model may also be named as `https://host/v1#model`.

    The key is `api_key`, or the variable HOLDFAST_EMBEDDINGS_API_KEY, or none. `dimensions` asks the model for vectors
    of that length; by default any length is accepted. `timeout` is in seconds, for one request.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        timeout: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        address = _parse_address(url)
        chosen = model or address.fragment
        if not chosen or not chosen.isprintable() or len(chosen) > 200:
            raise InvalidValue("Say which model the endpoint shall use: model=…, or after a # in its address.")
        if not is_number(timeout, most=3600, whole=False) or timeout <= 0:
            raise InvalidValue(f"timeout must be seconds, more than 0 and at most 3600, not {timeout!r:.40}.")
        self._api_key = None if api_key is None else check_key(api_key, "The endpoint's key")
        self._read_key()
        self._address, self._model, self._timeout = address, chosen, float(timeout)
        self._asked_for = check_dimensions(dimensions)
        self._clock: Clock = clock or SystemClock()
        length = f":{dimensions}" if dimensions else ""
        super().__init__(f"{address.netloc}{_endpoint_path(address)}#{chosen}{length}", dimensions)

    def _read_key(self) -> str:
        """Return the key as it is now: its variable may be set or corrected while a client is open."""
        return check_key(os.environ.get(KEY_VARIABLE), KEY_VARIABLE) if self._api_key is None else self._api_key

    def _compute_vectors(self, texts: list[str], *, query: bool) -> list[list[float]]:
        numbers: list[list[float]] = []
        while len(numbers) < len(texts):
            numbers += self._embed_batch(_next_batch(texts, len(numbers)), query)
        return numbers

    def _embed_batch(self, texts: list[str], query: bool) -> list[list[float]]:
        request: dict[str, Any] = {"model": self._model, "input": texts}
        if self._asked_for is not None:
            request["dimensions"] = self._asked_for
        body = msgspec.json.encode(request)
        attempts = ATTEMPTS_FOR_QUERY if query else MOST_ATTEMPTS
        longest = LONGEST_WAIT_FOR_QUERY if query else LONGEST_WAIT
        for attempt in range(1, attempts + 1):
            try:
                return self._parse_vectors(self._post(body), len(texts))
            except _EndpointBusy as error:
                if attempt == attempts:
                    raise self._failure(f"{error}, {attempt} times") from None
                wait = FIRST_WAIT * 2 ** (attempt - 1) if error.wait is None else error.wait
                self._clock.sleep(min(wait, longest))
        raise AssertionError("the last attempt returns or raises")

    def _parse_vectors(self, raw: bytes, count: int) -> list[list[float]]:
        try:
            items = msgspec.json.decode(raw, type=_EmbeddingsResponse).data
        except (msgspec.DecodeError, ValueError):
            raise self._failure("it did not answer with embeddings as JSON") from None
        places = [item.index for item in items]
        if len(items) != count or (places != [None] * count and sorted(p or 0 for p in places) != list(range(count))):
            raise self._failure(f"it gave {len(items):,} vectors for {count:,} texts, or in no known order")
        return [item.embedding for item in sorted(items, key=lambda item: item.index or 0)]

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = self._read_key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        assert self._address.hostname is not None
        with contextlib.closing(kind(self._address.hostname, self._address.port, timeout=self._timeout)) as connection:
            try:
                connection.request("POST", _endpoint_path(self._address), body, headers)
                response = connection.getresponse()
                answer = self._read_response(response)
            except TimeoutError:
                # Not retried: a caller waits for the search that needs this.
                raise self._failure(f"it did not answer within {self._timeout:g} seconds") from None
            except (OSError, http.client.HTTPException) as error:
                raise _EndpointBusy(f"it could not be reached ({type(error).__name__})") from None
        if response.status == 200:
            return answer
        raise self._status_error(response.status, response.getheader("Retry-After"), answer)

    def _read_response(self, response: http.client.HTTPResponse) -> bytes:
        """Read the response within the timeout and the size limit."""
        end, pieces, size = self._clock.monotonic() + self._timeout, [], 0
        while piece := response.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise self._failure(f"its answer is longer than {MOST_BYTES:,} bytes")
            if self._clock.monotonic() > end:
                raise TimeoutError
        if response.length:
            raise http.client.IncompleteRead(b"")
        return b"".join(pieces)

    def _status_error(self, status: int, retry_after: str | None, answer: bytes) -> Exception:
        if status in (408, 425, 429) or status >= 500:
            wait = float(retry_after) if retry_after and re.fullmatch(r"\d{1,6}(\.\d+)?", retry_after.strip()) else None
            return _EndpointBusy(f"it answered {status}", wait)
        if status in (401, 403):
            return InvalidValue(
                f"The embedder {self.name} was refused with {status}: its key is missing, wrong or not meant for this "
                f"model. Give api_key=…, or set {KEY_VARIABLE}."
            )
        if 300 <= status < 400:
            return InvalidValue(
                f"The embedder {self.name} was answered with {status}, a redirect, which is not followed, since the "
                "key would go along. Give the address that it leads to."
            )
        return InvalidValue(
            f"The embedder {self.name} was refused with {status}{self._error_message(answer)}. "
            "Check its address and model."
        )

    def _error_message(self, answer: bytes) -> str:
        """Return the endpoint's error message, without the key in case it is repeated there."""
        try:
            error = msgspec.json.decode(answer)["error"]
            said = error["message"] if isinstance(error, dict) else error
        except (msgspec.DecodeError, ValueError, KeyError, TypeError, IndexError):
            return ""
        if not isinstance(said, str):
            return ""
        key = self._read_key()
        shown = said.replace(key, "…") if key else said
        return ": " + "".join(letter if letter.isprintable() else " " for letter in shown[:200]).rstrip(". ")


def _next_batch(texts: list[str], start: int) -> list[str]:
    size = 0
    for end in range(start, min(len(texts), start + TEXTS_AT_ONCE)):
        size += len(texts[end])
        if size > CHARACTERS_AT_ONCE and end > start:
            return texts[start:end]
    return texts[start : start + TEXTS_AT_ONCE]


def _parse_address(url: object) -> SplitResult:
    wrong = "An endpoint's address looks like https://host/v1 or http://host:port/v1#model"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidValue(f"{wrong}, in plain characters without spaces.")
    address = split_address(url, wrong)
    if has_credentials(address):
        raise InvalidValue(f"{wrong}: no names, keys or ? in it. Give the key as api_key=…, or set {KEY_VARIABLE}.")
    return address


def _endpoint_path(address: SplitResult) -> str:
    path = address.path.rstrip("/")
    return path if path.endswith("/embeddings") else f"{path}/embeddings"
