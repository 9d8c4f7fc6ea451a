"""One HTTP request to a provider and its response, whole or streamed, read as a reply.

Every failure becomes a Fault with one of the kinds of `ModelFailed`, and says whether a retry may help. A response
that is complete counts, even if the connection breaks afterwards. A refusal is a reply. A reply cut off at its length
limit keeps its text; tool calls that were cut off are dropped. Whether a reply fits the requested schema is left to
the caller.

Deltas are relayed to a listener. When an attempt is retried, the deltas of the failed one are reset, but only once the
first new delta arrives: text on a screen stays until other text replaces it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import msgspec

from holdfast.core.numbers import is_number
from holdfast.core.wire.formats import Format
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.core.wire.read import CUT_OFF_REASONS, finish_reason, read_reply, read_usage, reply_format
from holdfast.core.wire.stream import StreamAccumulator
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.records.messages import Delta, Message
from holdfast.records.usage import Usage

MOST_BYTES = 64_000_000
MOST_ERROR_BYTES = 64_000
EXCHANGE_TIMEOUT = 3_600.0
"""Seconds that one response may take, however slowly it drips in."""
_END_OF_STREAM = "[DONE]"

ANSWERED_KINDS = ("cut", "malformed", "timeout")
"""Kinds of failures in which the provider worked on the request, and may charge for it."""
_QUOTA_ERRORS = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error")
"""Errors about money, which no wait lifts."""
_UNKNOWN_MODEL = "model_not_found"
"""The name of the error that some providers answer with 400 or 403."""
_POLICY_ERRORS = ("content_filter", "content_policy_violation", "bio_policy", "misalignment_policy_violation")
_KINDS = {
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "timeout_error": "timeout",
    "invalid_request_error": "rejected",
    "invalid_prompt": "rejected",
    "context_length_exceeded": "rejected",
    "not_found_error": "unknown_model",
    _UNKNOWN_MODEL: "unknown_model",
    "request_too_large": "rejected",
    "authentication_error": "unauthorised",
    "permission_error": "unauthorised",
}
_KIND_BY_STATUS = {
    401: "unauthorised",
    402: "quota",
    403: "unauthorised",
    404: "unknown_model",
    408: "timeout",
    504: "timeout",
    429: "rate_limited",
    409: "unavailable",
    425: "unavailable",  # These depend on the moment, not on the request.
}
_RETRYABLE_KINDS = ("rate_limited", "unavailable", "timeout", "cut", "malformed")
_ADVICE = {
    "rate_limited": "Wait, or send less at a time.",
    "unavailable": "Try again later.",
    "timeout": "Try again, or allow it more time with timeout=….",
    "cut": "Try again.",
    "malformed": "Try again, or use another model.",
    "refused": "Say it in another way.",
    "rejected": "Correct the request or the model's settings.",
    "unauthorised": "Check the key, and that it may use this model.",
    "unknown_model": "Check the model's name and address, and that the key may use it.",
    "quota": "Pay, raise the limit, or use another key.",
}
_LONGEST_QUOTE = 300

_REFUSAL_REASONS = ("refusal", "content_filter")
_NO_EXPLANATION = "The provider held the answer back."
_INCOMPLETE_STATES = ("in_progress", "queued", "cancelled")


async def send_request(
    client: httpx2.AsyncClient,
    url: str,
    body: bytes,
    headers: dict[str, str],
    pieces: StreamAccumulator,
    voice: DeltaRelay,
    now_ms: Callable[[], int],
) -> dict[str, Any]:
    """Send a request and return the whole response."""
    begun = False
    try:
        async with (
            asyncio.timeout(EXCHANGE_TIMEOUT),
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            begun = True
            if response.status_code != 200:
                refusal = await _read_body(response, MOST_ERROR_BYTES, short=True)
                raise fault_from_status(response.status_code, response.headers, refusal, now_ms())
            if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                await _read_stream(response, pieces, voice)
            else:
                return _parse_body(await _read_body(response, MOST_BYTES))
    except (TimeoutError, httpx2.TimeoutException):
        if not pieces.ended:
            raise Fault("it did not answer in time", kind="timeout", usage=pieces.usage) from None
    except httpx2.SSEError:
        raise _too_long(MOST_BYTES, pieces.usage) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        if not pieces.ended:
            raise _connection_fault(error, begun, pieces) from None
    if pieces.ended:
        return pieces.build_response()
    if pieces.error is not None:
        raise fault_from_error(pieces.error, pieces.usage)
    raise Fault("its stream was cut before the reply was whole", kind="cut", usage=pieces.usage)


async def _read_stream(response: httpx2.Response, pieces: StreamAccumulator, voice: DeltaRelay) -> None:
    """Read every event of a stream and relay its deltas."""
    size = 0
    source = httpx2.EventSource(response, max_event_size=MOST_BYTES)
    events = aiter(source)
    async for event in events:
        size += len(event.data)
        if size > MOST_BYTES:
            raise _too_long(MOST_BYTES, pieces.usage)
        if event.data == _END_OF_STREAM:
            # Draining the body frees the connection for the next request; this waits at most half a second.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for _ in events:
                        pass
            return
        try:
            new = pieces.add(event.data)
        except (InvalidMessage, TooLarge) as error:
            raise Fault(f"its stream cannot be read: {error}", kind="malformed", usage=pieces.usage) from None
        for delta in new:
            voice.relay(delta)


async def _read_body(response: httpx2.Response, most: int, *, short: bool = False) -> bytes:
    """Read a body of bounded length. With `short`, cut off the rest: the beginning of an error is enough."""
    found, size = [], 0
    async for piece in response.aiter_bytes():
        found.append(piece)
        size += len(piece)
        if size > most:
            if short:
                break
            raise _too_long(most)
    return b"".join(found)[:most]


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Fault("its answer is not JSON", kind="malformed") from None
    if not isinstance(found, dict):
        raise Fault("its answer is not an object", kind="malformed")
    error = found.get("error")
    if error:
        raise fault_from_error(error if isinstance(error, dict) else {"message": str(error)}, response_usage(found))
    return found


def _too_long(most: int, usage: Usage | None = None) -> Fault:
    return Fault(f"its answer is longer than {most:,} bytes", kind="malformed", usage=usage)


def _connection_fault(error: Exception, begun: bool, pieces: StreamAccumulator) -> Fault:
    if begun:
        return Fault("the connection broke in the middle of the answer", kind="cut", usage=pieces.usage)
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return Fault(f"it cannot be asked so ({type(error).__name__})", kind="rejected")
    return Fault(f"it could not be reached ({type(error).__name__})", kind="unavailable")


class Fault(Exception):
    """A failed attempt. `after` is the provider's Retry-After, in seconds."""

    def __init__(
        self,
        why: str,
        *,
        kind: str,
        retryable: bool | None = None,
        status: int | None = None,
        after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(why)
        self.kind, self.status, self.after, self.usage = kind, status, after, usage
        self.retryable = kind in _RETRYABLE_KINDS if retryable is None else retryable
        self.advice = _ADVICE[kind]


def fault_from_status(status: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> Fault:
    """Build the Fault for a response whose HTTP status is not 200."""
    error = _parse_error(body)
    kind, names = _kind_of_status(status), _error_names(error)
    # Some providers quote part of a wrong key, so their message is left out.
    said = "" if status == 401 else _quote_message(error)
    if names.intersection(_POLICY_ERRORS):
        kind = "refused"
    elif names.intersection(_QUOTA_ERRORS):
        kind = "quota"
    elif _UNKNOWN_MODEL in names:
        kind = "unknown_model"
    retryable = False if headers.get("x-should-retry") == "false" else None
    why = f"it answered {status}{said}"
    return Fault(why, kind=kind, retryable=retryable, status=status, after=parse_retry_after(headers, now_ms))


def fault_from_error(error: Mapping[str, Any], usage: Usage | None = None) -> Fault:
    """Build the Fault for an error object sent in place of a reply, or in the middle of one."""
    code = error.get("code")
    if is_number(code, least=400, most=599):
        # Some gateways answer 200 and put the real status into the error.
        return Fault(f"it answered {code}{_quote_message(error)}", kind=_kind_of_status(code), status=code, usage=usage)
    names = _error_names(error)
    kind = next((_KINDS[name] for name in sorted(names) if name in _KINDS), "unavailable")
    if names.intersection(_POLICY_ERRORS):
        kind = "refused"
    elif names.intersection(_QUOTA_ERRORS):
        kind = "quota"
    elif any("image" in name for name in names):
        kind = "rejected"
    return Fault(f"it ended with an error{_quote_message(error)}", kind=kind, usage=usage)


def parse_retry_after(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Return the seconds of a Retry-After header: a number, milliseconds, or a date; None if there is none."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = (headers.get(name) or "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            return float(text) / divisor
    try:
        until = parsedate_to_datetime(headers.get("retry-after") or "")
        return max(0.0, until.timestamp() - now_ms / 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _kind_of_status(status: int) -> str:
    return _KIND_BY_STATUS.get(status, "unavailable" if status >= 500 else "rejected")


def _parse_error(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    error = found.get("error", found) if isinstance(found, dict) else found
    return error if isinstance(error, dict) else {"message": error if isinstance(error, str) else ""}


def _error_names(error: Mapping[str, Any]) -> set[str]:
    return {name for key in ("type", "code") if isinstance(name := error.get(key), str)}


def _quote_message(error: Mapping[str, Any]) -> str:
    said = error.get("message")
    return f": {' '.join(said.split())[:_LONGEST_QUOTE].rstrip('.')}" if isinstance(said, str) and said.strip() else ""


def parse_reply(whole: dict[str, Any], form: Format) -> tuple[Message, str | None]:
    """Return the message, and its finish reason unless it ended normally; raise a Fault with the usage if unusable."""
    usage = response_usage(whole)
    if reply_format(whole) != form:
        raise Fault("its answer is not of the form that was asked for", kind="malformed", usage=usage)
    finish = finish_reason(whole, form)
    if finish in _INCOMPLETE_STATES:
        raise Fault(f"its answer is not complete but {finish}", kind="malformed", usage=usage)
    try:
        message = read_reply(whole, form, ReadNotes(strict=True, partial=finish in CUT_OFF_REASONS))
    except TooLarge as error:
        raise Fault(f"its answer cannot be kept: {error}", kind="malformed", usage=usage) from None
    except InvalidMessage as error:
        if finish not in _REFUSAL_REASONS:
            raise _empty_reply_fault(error, finish, usage) from None
        message = _refusal_message(whole, form, finish, usage)
    parts = message.content if isinstance(message.content, list) else []
    blank = all(part.get("type") == "reasoning" or part.get("text") == "" for part in parts)
    if parts and blank and not message.tool_calls:
        raise _empty_reply_fault(InvalidMessage("it has only thought, and said nothing"), finish, usage)
    finish = (message.metadata or {}).get("finish")
    if finish is None and any(part.get("type") == "refusal" for part in parts):
        finish = "refusal"
    return message, finish


def response_usage(whole: dict[str, Any]) -> Usage | None:
    """Return the usage that a response reports."""
    model = whole.get("model")
    return read_usage(whole.get("usage"), model if isinstance(model, str) else None)


def _empty_reply_fault(error: InvalidMessage, finish: str | None, usage: Usage | None) -> Fault:
    if finish in CUT_OFF_REASONS:
        why = "it came to the end of its reply's length before it had said anything. Give it a larger max_tokens"
        return Fault(why, kind="malformed", retryable=False, usage=usage)
    return Fault(f"its answer cannot be read: {error}", kind="malformed", usage=usage)


def _refusal_message(whole: dict[str, Any], form: Format, finish: str | None, usage: Usage | None) -> Message:
    """Return a refusal without text as a message that says so."""
    details = whole.get("stop_details")
    said = details.get("explanation") if isinstance(details, dict) else None
    model = whole.get("model")
    return Message(
        role="assistant",
        content=[{"type": "refusal", "text": said if isinstance(said, str) and said else _NO_EXPLANATION}],
        provider="anthropic" if form == "anthropic" else "openai",
        model=model if isinstance(model, str) else None,
        usage=usage,
        metadata={"finish": finish},
    )


class ListenerError(Exception):
    """An exception raised by the listener: the caller's own error, not a fault of the model."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class DeltaRelay:
    """The relay to one listener, or none."""

    __slots__ = ("_anew", "_heard", "_say", "_texts")

    def __init__(self, say: Callable[[Delta], None] | None) -> None:
        self._say = say
        self._texts: list[str] = []
        self._heard = False
        self._anew = False

    @property
    def visible_text(self) -> str:
        """The text that was relayed and not reset."""
        return "".join(self._texts)

    def relay(self, delta: Delta) -> None:
        """Relay one delta."""
        if self._anew:
            self._reset()
        self._heard = True
        if delta.kind == "text":
            self._texts.append(delta.text)
        self._call_listener(delta)

    def restart(self) -> None:
        """Mark the next delta as the first of another attempt."""
        self._anew = self._heard

    def finish(self, message: Message) -> None:
        """Finish the reply; a reply that was not streamed is relayed as one delta."""
        if self._anew:
            self._reset()
        if self._heard:
            return
        if message.text:
            self.relay(Delta(text=message.text))
        for call in message.tool_calls:
            self.relay(Delta(kind="tool", text=call.name))

    def _reset(self) -> None:
        self._anew, self._heard, self._texts = False, False, []
        self._call_listener(Delta(kind="reset"))

    def _call_listener(self, delta: Delta) -> None:
        if self._say is None:
            return
        try:
            self._say(delta)
        except Exception as error:  # noqa: BLE001  it is the caller's own code
            raise ListenerError(error) from None
