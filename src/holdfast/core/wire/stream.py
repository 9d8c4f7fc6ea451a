"""Streams of providers, accumulated event by event to the response that would have come without streaming.

An event is a mapping, an SDK's object, or the text after `data:`. Each yields the new pieces for display; at the end
`build_response()` returns a response for `replies.read_reply`: text, calls, reasoning unaltered, refusal, usage,
finish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.wire.formats import FORMATS, Format
from holdfast.core.wire.plain_data import get_field
from holdfast.core.wire.replies import read_usage
from holdfast.core.wire.stream_providers import ChatPieces, MessagePieces, ResponsePieces, StreamPieces, find_error
from holdfast.errors import InvalidMessage, InvalidValue, ModelFailed
from holdfast.records.models import Delta
from holdfast.records.usage import Usage

_ANTHROPIC_EVENTS = (
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
)
_END_MARK = "[DONE]"


def event_format(event: Any) -> Format | None:
    """Return the format of an event; None if it does not show, as for a ping or an error."""
    kind = get_field(event, "type")
    if isinstance(kind, str):
        if kind.startswith("response."):
            return "responses"
        if kind in _ANTHROPIC_EVENTS:
            return "anthropic"
        return "openai" if kind == "chunk" and get_field(event, "chunk") is not None else None
    if get_field(event, "object") == "chat.completion.chunk" or isinstance(get_field(event, "choices"), list):
        return "openai"
    return None


class StreamAccumulator:
    """An accumulator of a stream's events. If no format is given, the first event that shows one determines it."""

    __slots__ = ("_answer_tool", "_pieces", "form")

    event_format = staticmethod(event_format)

    def __init__(self, form: Format | None = None, *, answer_tool: str | None = None) -> None:
        self.form = form
        self._answer_tool = answer_tool
        self._pieces: StreamPieces | None = None if form is None else self._make_pieces(form)

    def add(self, event: Any) -> list[Delta]:
        """Add an event and return the new pieces."""
        given = _decode_event(event) if isinstance(event, str | bytes) else event
        if given is None:
            return []
        error = find_error(given)
        if self._pieces is None:
            self.form = event_format(given)
            if self.form is None and error is None:
                return []
            self._pieces = self._make_pieces(self.form or "openai")
        if error is None:
            return self._pieces.add(given)
        self._pieces.error = error
        return []

    @property
    def text(self) -> str:
        """The text so far."""
        return "" if self._pieces is None else "".join(self._pieces.said)

    @property
    def ended(self) -> bool:
        """True if the reply is complete."""
        return self._pieces is not None and self._pieces.ended

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that the provider sent within the stream, if any."""
        return None if self._pieces is None else self._pieces.error

    @property
    def usage(self) -> Usage | None:
        """The usage reported so far."""
        if self._pieces is None or self._pieces.usage is None:
            return None
        model = self._pieces.build_response().get("model")
        return read_usage(self._pieces.usage, model if isinstance(model, str) else None)

    def build_response(self) -> dict[str, Any]:
        """Return the whole response; raise ModelFailed if the stream was cut short or ended with an error."""
        if self._pieces is not None and self._pieces.ended:
            return self._pieces.build_response()
        if self.error is not None:
            said = str(self.error.get("message") or "nothing more")[:500]
            why = f"The model's stream ended with an error: {said.rstrip('.')}. Try again."
            raise ModelFailed(why, retryable=True, usage=self.usage, partial=self.text)
        raise ModelFailed(
            "The stream of the model was cut before the reply was whole. Ask again, or keep what was said as partial.",
            kind="cut",
            retryable=True,
            usage=self.usage,
            partial=self.text,
        )

    def _make_pieces(self, form: Format) -> StreamPieces:
        made: dict[str, Callable[[], StreamPieces]] = {
            "openai": ChatPieces,
            "responses": ResponsePieces,
            "anthropic": lambda: MessagePieces(self._answer_tool),
        }
        return made[form]()


def make_accumulator(form: str | None = None, *, answer_tool: str | None = None) -> StreamAccumulator:
    """Return an accumulator for this format, or for the format of the first event."""
    found: Format | None = next((known for known in FORMATS if known == form), None)
    if form is not None and found is None:
        raise InvalidValue(f"{form!r:.40} is not a form of stream. Use one of {', '.join(FORMATS)}, or leave it out.")
    return StreamAccumulator(found, answer_tool=answer_tool)


def _decode_event(event: str | bytes) -> Any:
    """Decode the data of a server-sent event; None for the end mark and for empty data."""
    text = event.decode("utf-8", "replace") if isinstance(event, bytes) else event
    text = text.strip().removeprefix("data:").strip()
    if not text or text == _END_MARK:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidMessage(f"An event of the stream is not JSON: {text[:60]!r}. Ask the model again.") from None
    if not isinstance(found, dict):
        raise InvalidMessage(f"An event of the stream is not an object: {text[:60]!r}. Ask the model again.")
    return found
