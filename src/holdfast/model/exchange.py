"""One request and its answer, whole or in events. Whatever goes wrong on the way is a Fault with a kind.

An answer that came to its end counts, whatever happens to the connection after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx2
import msgspec

from holdfast.core.wire.streaming import Accumulator
from holdfast.errors import InvalidMessage
from holdfast.model.failures import Fault, by_error, by_status
from holdfast.model.replying import usage_of
from holdfast.model.voice import Voice

MOST_BYTES = 64_000_000
MOST_ERROR_BYTES = 64_000
LONGEST = 3_600.0
"""No answer takes longer, however much of it drips in."""
_END = "[DONE]"


async def exchange(
    client: httpx2.AsyncClient,
    url: str,
    body: bytes,
    headers: dict[str, str],
    pieces: Accumulator,
    voice: Voice,
    now_ms: Callable[[], int],
) -> dict[str, Any]:
    """The whole response to a request."""
    begun = False
    try:
        async with asyncio.timeout(LONGEST), client.stream("POST", url, content=body, headers=headers) as response:
            begun = True
            if response.status_code != 200:
                refusal = await _read(response, MOST_ERROR_BYTES, short=True)
                raise by_status(response.status_code, response.headers, refusal, now_ms())
            if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                await _hear(response, pieces, voice)
            else:
                return _whole(await _read(response, MOST_BYTES))
    except (TimeoutError, httpx2.TimeoutException):
        if not pieces.ended:
            raise Fault("it did not answer in time", kind="timeout", usage=pieces.usage) from None
    except httpx2.SSEError:
        raise Fault(f"its answer is longer than {MOST_BYTES:,} bytes", kind="malformed", usage=pieces.usage) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        if not pieces.ended:
            raise _broken(error, begun, pieces) from None
    return _heard(pieces)


async def _hear(response: httpx2.Response, pieces: Accumulator, voice: Voice) -> None:
    """Every event of a stream."""
    size = 0
    source = httpx2.EventSource(response, max_event_size=MOST_BYTES)
    events = aiter(source)
    async for event in events:
        size += len(event.data)
        if size > MOST_BYTES:
            raise Fault(f"its answer is longer than {MOST_BYTES:,} bytes", kind="malformed", usage=pieces.usage)
        if event.data == _END:
            # The end of the body frees the connection for the next request; nobody waits long for it.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for _ in events:
                        pass
            return
        try:
            new = pieces.add(event.data)
        except InvalidMessage as error:
            raise Fault(f"its stream cannot be read: {error}", kind="malformed", usage=pieces.usage) from None
        for delta in new:
            voice.say(delta)


def _heard(pieces: Accumulator) -> dict[str, Any]:
    if pieces.ended:
        return pieces.whole()
    if pieces.error is not None:
        raise by_error(pieces.error, pieces.usage)
    raise Fault("its stream was cut before the reply was whole", kind="cut", usage=pieces.usage)


async def _read(response: httpx2.Response, most: int, *, short: bool = False) -> bytes:
    """A body of bounded length; of an error its beginning is enough."""
    found, size = [], 0
    async for piece in response.aiter_bytes():
        found.append(piece)
        size += len(piece)
        if size > most:
            if short:
                break
            raise Fault(f"its answer is longer than {most:,} bytes", kind="malformed")
    return b"".join(found)[:most]


def _whole(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Fault("its answer is not JSON", kind="malformed") from None
    if not isinstance(found, dict):
        raise Fault("its answer is not an object", kind="malformed")
    error = found.get("error")
    if error:
        raise by_error(error if isinstance(error, dict) else {"message": str(error)}, usage_of(found))
    return found


def _broken(error: Exception, begun: bool, pieces: Accumulator) -> Fault:
    if begun:
        return Fault("the connection broke in the middle of the answer", kind="cut", usage=pieces.usage)
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return Fault(f"it cannot be asked so ({type(error).__name__})", kind="rejected")
    return Fault(f"it could not be reached ({type(error).__name__})", kind="unavailable")
