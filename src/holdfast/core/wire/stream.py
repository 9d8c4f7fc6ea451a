"""Streams of providers, accumulated event by event to the response that would have come without streaming.

An event is a mapping, an SDK's object, or the text after `data:`. SDK objects may carry everything that came before (a
`snapshot`), so an event is never converted as a whole: only the needed fields are read. Each yields the new pieces for
display; at the end `build_response()` returns a response for `read.read_reply`: text, calls, reasoning unaltered,
refusal, usage, finish.

Chat completions: other hosts of this format have habits of their own, such as calls that all have index 0 or none,
ids and names in every piece, reasoning beside the content, usage in a chunk without choices, or in every chunk.

Responses: the last event holds the whole response. A host that omits the output from it has sent each item when it
was done, so those items are used.

Anthropic: thinking keeps its signature, blocks of hosted tools stay as they came. Usage accumulates: the initial
counts stay unless a later report has its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.numbers import is_number
from holdfast.core.wire.calls import json_text
from holdfast.core.wire.formats import FORMATS, Format
from holdfast.core.wire.plain_data import ReadNotes, check_count, get_field, to_plain_data
from holdfast.core.wire.read import read_usage
from holdfast.errors import InvalidMessage, InvalidValue, ModelFailed
from holdfast.records.messages import Delta, DeltaKind
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
_HEAD_FIELDS = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_START_EVENTS = ("response.created", "response.queued", "response.in_progress")
_TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
_REASONING_EVENTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_CALL_TYPES = ("function_call", "custom_tool_call")


class TextPieces(list[str]):
    """A text in pieces: joining a long one again for each piece would take quadratic time."""

    __slots__ = ()


class StreamPieces(msgspec.Struct, kw_only=True):
    """The accumulated pieces of one reply. Each format has its own subclass."""

    said: list[str] = []
    """The text shown to the user so far."""
    ended: bool = False
    """True if the reply is complete."""
    error: dict[str, Any] | None = None
    """The error that the provider sent instead of continuing."""
    usage: dict[str, Any] | None = None
    """The usage reported so far."""

    def add(self, event: Any) -> list[Delta]:
        """Add one event and return its new pieces for display."""
        raise NotImplementedError

    def build_response(self) -> dict[str, Any]:
        """Return the response as it would have come without streaming."""
        raise NotImplementedError

    def add_text(self, words: Any) -> list[Delta]:
        """Add text of the reply and return it as a delta."""
        new = make_deltas(words)
        self.said += [delta.text for delta in new]
        return new

    def add_usage(self, usage: Any) -> None:
        """Merge a usage report. Counts only grow; fields that a later report omits are kept."""
        told = to_plain_dict(usage)
        if told:
            self.usage = {**(self.usage or {}), **{key: value for key, value in told.items() if value is not None}}


def to_plain_dict(thing: Any) -> dict[str, Any]:
    """Return a mapping or an object as plain data; empty if it is neither."""
    found = to_plain_data(thing, ReadNotes()) if thing is not None else None
    return found if isinstance(found, dict) else {}


def find_error(event: Any) -> dict[str, Any] | None:
    """Return the error in an event, in any format; None if there is none."""
    error = get_field(event, "error")
    if error:
        return to_plain_dict(error) or {"message": str(error)}
    if get_field(event, "type") != "error":
        return None
    told = {name: value for name in ("code", "message") if isinstance(value := get_field(event, name), str)}
    return told or {"message": "nothing more"}


def list_items(value: Any) -> list[Any]:
    """Return the items of a list; none if it is not a list."""
    return list(value) if isinstance(value, list | tuple) else []


def read_index(value: Any) -> int | None:
    """Return a valid list index, or None."""
    return value if is_number(value, least=0) else None


def make_deltas(text: Any, kind: DeltaKind = "text") -> list[Delta]:
    """Return a text, or the name of a tool being called, as a delta; none if it is empty."""
    return [Delta(kind=kind, text=text)] if isinstance(text, str) and text else []


def merge_pieces(held: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge new pieces into held ones: append texts and lists, merge mappings by name."""
    for name, value in more.items():
        before = held.get(name)
        if value is None or (before and name in ("id", "type")):
            continue
        if isinstance(value, str) and name not in ("id", "type"):
            if not isinstance(before, TextPieces):
                held[name] = before = TextPieces([before] if isinstance(before, str) else [])
            before.append(value)
        elif isinstance(before, TextPieces):
            continue
        elif isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            merge_pieces(before, value)
        else:
            held[name] = value


def join_texts(value: Any) -> Any:
    """Return the value with every text joined."""
    if isinstance(value, TextPieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: join_texts(item) for name, item in value.items()}
    return [join_texts(item) for item in value] if isinstance(value, list) else value


class ChatPieces(StreamPieces):
    """One streamed completion. Only the first choice is shown; others are kept."""

    _head: dict[str, Any] = {}
    _choices: dict[int, _ChatChoice] = {}

    def add(self, event: Any) -> list[Delta]:
        # The SDK's own streaming helper wraps each chunk, and also reports it in other events.
        chunk = event if get_field(event, "type") is None else get_field(event, "chunk")
        for name in _HEAD_FIELDS:
            value = get_field(chunk, name)
            if value is not None:
                self._head.setdefault(name, value)
        self.add_usage(get_field(chunk, "usage"))
        said: list[Delta] = []
        for choice in list_items(get_field(chunk, "choices")):
            said += self._add_choice(choice)
        return said

    def build_response(self) -> dict[str, Any]:
        choices = [self._choices[index].build_choice(index) for index in sorted(self._choices)]
        told = {} if self.usage is None else {"usage": self.usage}
        return {**self._head, "object": "chat.completion", "choices": choices, **told}

    def _add_choice(self, choice: Any) -> list[Delta]:
        index = read_index(get_field(choice, "index")) or 0
        kept = self._choices.setdefault(index, _ChatChoice({"role": "assistant", "content": None}))
        new = kept.add(get_field(choice, "delta"), get_field(choice, "logprobs"))
        finish = get_field(choice, "finish_reason")
        if isinstance(finish, str) and finish:
            kept.finish = finish
            self.ended = self.ended or index == 0
        if index != 0:
            return []
        self.said += [delta.text for delta in new if delta.kind == "text"]
        return new


class _ChatChoice(msgspec.Struct):
    """One choice of a completion."""

    message: dict[str, Any]
    calls: list[dict[str, Any]] = []
    finish: str | None = None
    logprobs: dict[str, Any] = {}

    def add(self, delta: Any, logprobs: Any) -> list[Delta]:
        given = to_plain_dict(delta)
        given.pop("role", None)
        calls, content = given.pop("tool_calls", None), given.pop("content", None)
        said = [new for name in _REASONING_FIELDS for new in make_deltas(given.get(name), "reasoning")][:1]
        said += self._add_content(content)
        said += make_deltas(given.get("refusal"))
        for call in list_items(calls):
            said += self._add_call(call) if isinstance(call, dict) else []
        merge_pieces(self.message, given)
        merge_pieces(self.logprobs, to_plain_dict(logprobs))
        return said

    def build_choice(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = join_texts(self.message)
        if self.calls:
            message["tool_calls"] = [
                {key: value for key, value in join_texts(call).items() if key != "index"} for call in self.calls
            ]
        told = {"logprobs": join_texts(self.logprobs)} if self.logprobs else {}
        return {"index": index, "message": message, "finish_reason": self.finish, **told}

    def _add_content(self, content: Any) -> list[Delta]:
        """Add text, or parts where a host streams its reasoning as part of the content."""
        held = self.message["content"]
        if isinstance(content, list):
            self.message["content"] = [*_content_parts(held), *content]
            return [new for part in content if isinstance(part, dict) for new in make_deltas(part.get("text"))]
        if isinstance(content, str) and isinstance(held, list) and not isinstance(held, TextPieces):
            held.extend(_content_parts(content))
        elif isinstance(content, str):
            merge_pieces(self.message, {"content": content})
        return make_deltas(content)

    def _add_call(self, piece: dict[str, Any]) -> list[Delta]:
        call, new = self._find_or_add_call(piece)
        inner = "custom" if isinstance(piece.get("custom"), dict) else "function"
        held = call.setdefault(inner, {"name": "", "input" if inner == "custom" else "arguments": ""})
        more = piece.pop(inner, None)
        more = more if isinstance(more, dict) else {}
        before, name = held["name"], more.pop("name", None)
        if isinstance(name, str) and name != before:
            held["name"] += name
        merge_pieces(held, more)
        for key, value in piece.items():
            if value is not None and key not in ("function", "custom") and not call.get(key):
                call[key] = value
        return make_deltas(held["name"], "tool") if new or not before else []

    def _find_or_add_call(self, piece: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the call a piece belongs to and whether it is new: by index, unless another id marks a new call."""
        index, given = read_index(piece.get("index")), piece.get("id")
        if index is None:
            same = [call for call in self.calls if call.get("id") == given] if given else self.calls[-1:]
        else:
            same = [call for call in self.calls if call.get("index") == index][-1:]
            if same and given and same[0].get("id") and same[0]["id"] != given:
                same = []
        if same:
            return same[-1], False
        check_count("tool_calls", len(self.calls) + 1)
        self.calls.append({"id": "", "type": "function", **({} if index is None else {"index": index})})
        if isinstance(piece.get("type"), str) and piece["type"]:
            self.calls[-1]["type"] = piece["type"]
        return self.calls[-1], True


def _content_parts(content: Any) -> list[Any]:
    content = join_texts(content)
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


class MessagePieces(StreamPieces, kw_only=True):
    """One streamed message. The arguments of a call to `answer_tool` are the answer itself, and become text."""

    answer_tool: str | None
    _head: dict[str, Any] = {}
    _blocks: dict[int, dict[str, Any]] = {}
    _inputs: dict[int, list[str]] = {}

    def add(self, event: Any) -> list[Delta]:
        kind = get_field(event, "type")
        if kind == "content_block_delta":
            return self._add_delta(read_index(get_field(event, "index")) or 0, get_field(event, "delta"))
        if kind == "content_block_start":
            return self._begin_block(
                read_index(get_field(event, "index")), to_plain_dict(get_field(event, "content_block"))
            )
        if kind == "message_start":
            self._head = to_plain_dict(get_field(event, "message"))
            self.add_usage(self._head.get("usage"))
            given = list_items(self._head.get("content"))
            self._blocks = dict(enumerate(block for block in given if isinstance(block, dict)))
        elif kind == "message_delta":
            changed = to_plain_dict(get_field(event, "delta"))
            self._head.update({name: value for name, value in changed.items() if value is not None})
            self.add_usage(get_field(event, "usage"))
            self.ended = self.ended or bool(changed.get("stop_reason"))
        return []

    def build_response(self) -> dict[str, Any]:
        content = [self._build_block(index) for index in sorted(self._blocks)]
        told = {} if self.usage is None else {"usage": self.usage}
        made = {"type": "message", "role": "assistant", **self._head, "content": content, **told}
        return unwrap_answer(made, self.answer_tool)

    def _begin_block(self, index: int | None, block: dict[str, Any]) -> list[Delta]:
        self._blocks[len(self._blocks) if index is None else index] = block
        if block.get("type") == "text":
            return self.add_text(block.get("text"))
        if block.get("type") == "thinking":
            return make_deltas(block.get("thinking"), "reasoning")
        name = block.get("name")
        return make_deltas(name, "tool") if block.get("type") == "tool_use" and not self._is_answer(block) else []

    def _is_answer(self, block: dict[str, Any]) -> bool:
        return self.answer_tool is not None and block.get("name") == self.answer_tool

    def _add_delta(self, index: int, delta: Any) -> list[Delta]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = get_field(delta, "type")
        if kind == "input_json_delta":
            piece = get_field(delta, "partial_json")
            self._inputs.setdefault(index, []).append(piece if isinstance(piece, str) else "")
            return self.add_text(piece) if self._is_answer(block) else []
        if kind == "signature_delta":
            block["signature"] = get_field(delta, "signature")
            return []
        if kind == "citations_delta":
            block["citations"] = [*list_items(block.get("citations")), to_plain_dict(get_field(delta, "citation"))]
            return []
        merge_pieces(block, {name: piece for name, piece in to_plain_dict(delta).items() if isinstance(piece, str)})
        return self.add_text(get_field(delta, "text")) or make_deltas(get_field(delta, "thinking"), "reasoning")

    def _build_block(self, index: int) -> dict[str, Any]:
        block: dict[str, Any] = join_texts(self._blocks[index])
        written = "".join(self._inputs.get(index, ()))
        if not written.strip():
            return block
        if self._is_answer(block):
            return {**block, "input": written}
        try:
            return {**block, "input": msgspec.json.decode(written)}
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            # Keep unparseable arguments as text, so that the reader of the call can report them.
            return {**block, "input": written}


def unwrap_answer(message: dict[str, Any], answer_tool: str | None) -> dict[str, Any]:
    """Return the message with a call of the answer tool replaced by the text of its arguments."""
    content = message.get("content")
    if answer_tool is None or not isinstance(content, list):
        return message
    blocks = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("name") == answer_tool:
            given = block.get("input")
            blocks.append({"type": "text", "text": given if isinstance(given, str) else json_text(given)})
        else:
            blocks.append(block)
    calls = any(isinstance(block, dict) and block.get("type") == "tool_use" for block in blocks)
    ended = message.get("stop_reason")
    return {**message, "content": blocks, "stop_reason": "end_turn" if ended == "tool_use" and not calls else ended}


class ResponsePieces(StreamPieces):
    """One streamed response."""

    _head: dict[str, Any] = {}
    _last: dict[str, Any] | None = None
    _items: dict[int, dict[str, Any]] = {}
    _told: set[int] = set()
    """Indexes of items already shown in part."""

    def add(self, event: Any) -> list[Delta]:
        kind = get_field(event, "type")
        if kind in _TEXT_EVENTS:
            self._mark_shown(event)
            return self.add_text(get_field(event, "delta"))
        if kind in _REASONING_EVENTS:
            return make_deltas(get_field(event, "delta"), "reasoning")
        if kind == "response.output_item.added":
            item = get_field(event, "item")
            if get_field(item, "type") in _CALL_TYPES and self._mark_shown(event):
                return make_deltas(get_field(item, "name"), "tool")
        elif kind == "response.output_item.done":
            return self._finish_item(event)
        elif kind in _FINAL_EVENTS:
            self._finish_response(to_plain_dict(get_field(event, "response")))
        elif kind in _START_EVENTS:
            self._head = to_plain_dict(get_field(event, "response"))
        return []

    def build_response(self) -> dict[str, Any]:
        found = dict(self._head if self._last is None else self._last)
        if not found.get("output"):
            found["output"] = [self._items[index] for index in sorted(self._items)]
        return {**found, "object": "response"}

    def _finish_response(self, response: dict[str, Any]) -> None:
        self._last = response
        self.add_usage(response.get("usage"))
        if response.get("status") == "failed":
            error = response.get("error")
            self.error = error if isinstance(error, dict) else {"message": "The response failed."}
        else:
            self.ended = True

    def _mark_shown(self, event: Any) -> bool:
        """Mark an item as shown; return True if it was not before."""
        index = read_index(get_field(event, "output_index")) or 0
        first = index not in self._told
        self._told.add(index)
        return first

    def _finish_item(self, event: Any) -> list[Delta]:
        item = to_plain_dict(get_field(event, "item"))
        first = self._mark_shown(event)
        index = read_index(get_field(event, "output_index"))
        self._items[len(self._items) if index is None else index] = item
        if not first:
            return []
        if item.get("type") in _CALL_TYPES:
            return make_deltas(item.get("name"), "tool")
        content = item.get("content") if item.get("type") == "message" else ()
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        return [new for part in parts for new in self.add_text(part.get("text") or part.get("refusal"))]


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

    def __init__(self, form: str | None = None, *, answer_tool: str | None = None) -> None:
        self.form: Format | None = next((known for known in FORMATS if known == form), None)
        if self.form != form:
            known = ", ".join(FORMATS)
            raise InvalidValue(f"{form!r:.40} is not a form of stream. Use one of {known}, or leave it out.")
        self._answer_tool = answer_tool
        self._pieces: StreamPieces | None = None if self.form is None else self._make_pieces(self.form)

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
        if form == "anthropic":
            return MessagePieces(answer_tool=self._answer_tool)
        return ChatPieces() if form == "openai" else ResponsePieces()


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
