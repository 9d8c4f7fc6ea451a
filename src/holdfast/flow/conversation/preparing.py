"""Messages made ready to be written: redacted, large and binary bodies placed as artifacts, tokens counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.compaction.strategies import priority_of
from holdfast.core.counting import Framing, counted_as, message_tokens
from holdfast.core.decide.lines import Answer, Entry
from holdfast.core.said import message_content, short
from holdfast.core.values import plain
from holdfast.errors import InvalidMessage, InvalidValue, NotFound, TooLarge
from holdfast.flow import artifacts, redacting
from holdfast.flow.stack.pricing import priced
from holdfast.ports import Acting, Ports, Tokenizer
from holdfast.records.batches import Artifact
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Message, Part
from holdfast.records.reports import Progress

SMALL = 4_000
"""Texts up to this size stay in the event even if the message as a whole is large."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Messages on their way into the journal, with the artifacts that go in beside them."""

    messages: tuple[Message, ...]
    entries: tuple[Entry, ...]
    artifacts: tuple[Artifact, ...]


class Preparing:
    """Makes messages ready; everything that can be refused is refused here, before anything is written."""

    def __init__(self, ports: Ports, acting: Acting, tokenizer: Tokenizer, framing: Framing) -> None:
        self._ports, self._acting = ports, acting
        self._tokenizer, self._framing = tokenizer, framing
        self._placed: dict[str, Artifact] = {}
        self._given: dict[str, str] = {}
        self._most = ports.settings.inline_text_bytes

    def all(
        self, messages: Sequence[Message], *, policy: str | None = None, progress: Progress | None = None
    ) -> Prepared:
        """Every message, or an error and no file left behind."""
        kept, entries = [], []
        try:
            for number, message in enumerate(messages, 1):
                ready, entry = self._one(message, policy)
                kept.append(ready)
                entries.append(entry)
                if progress is not None and number % 100 == 0:
                    progress(number, len(messages))
        except BaseException:
            artifacts.withdraw(self._ports, self._acting, tuple(self._placed.values()))
            raise
        return Prepared(messages=tuple(kept), entries=tuple(entries), artifacts=tuple(self._placed.values()))

    def _one(self, message: Message, policy: str | None) -> tuple[Message, Entry]:
        message = self._priced(_plain(message))
        if self._ports.redact is not None:
            message = redacting.message(self._ports.redact, message)
        self._check_size(message)
        # Many texts that are small alone are large together.
        together = _size(message) > self._ports.settings.inline_text_bytes
        most = self._ports.settings.inline_text_bytes
        self._most = min(SMALL, most) if together else most
        named: list[str] = []
        tokens = message_tokens(message, self._tokenizer.count, self._framing)
        message, stored = self._place_parts(self._placed_results(message, named), named)
        large = {index: name for index, name in enumerate(self._place_results(message, named)) if name is not None}
        calls = tuple((ulid_text(self._ports.ids.ulid()), short(call.provider_id)) for call in message.tool_calls)
        # Results in the same list may name a call by the id that it came with.
        self._given.update({call.id: id for call, (id, _) in zip(message.tool_calls, calls, strict=True) if call.id})
        answers = (
            Answer(self._given.get(one.tool_call_id, one.tool_call_id), short(one.provider_id), one.is_error)
            for one in message.tool_results
        )
        entry = Entry(
            role=message.role,
            content=message_content(stored, large),
            calls=calls,
            answers=tuple(answers),
            tokens=tokens,
            tokenizer=counted_as(self._tokenizer.name, self._framing),
            partial=message.partial,
            synthetic=message.synthetic,
            policy=_policy(policy or ("pinned" if message.pinned else message.policy)),
            model=message.model,
            provider=message.provider,
            usage=message.usage,
            artifacts=tuple(dict.fromkeys(named)),
        )
        return message, entry

    def _priced(self, message: Message) -> Message:
        """A reply with what its call cost, as far as that is known."""
        used = message.usage
        cost = used if used is None else priced(self._ports, used, message.model)
        return message if cost is used else replace(message, usage=cost)

    def _check_size(self, message: Message) -> None:
        size, most = _size(message), self._ports.settings.message_bytes
        if size > most:
            raise TooLarge(
                f"The message has about {size:,} bytes of text; {most:,} are allowed. "
                "Attach it as a file, split it, or raise HOLDFAST_MESSAGE_BYTES."
            )

    def _place(self, body: bytes, named: list[str]) -> str:
        placed = artifacts.prepare(self._ports, self._acting, body)
        name = placed.name.hex()
        self._placed[name] = placed
        named.append(name)
        return name

    def _place_parts(self, message: Message, named: list[str]) -> tuple[Message, Message]:
        """The message as it is given back, and as it is stored: with large texts named, not held."""
        content = message.content
        if content is None or isinstance(content, str):
            if content is None or not self._is_large(content):
                return message, message
            part = {"type": "text", "artifact": self._place(_utf8(content), named), "whole": True}
            return message, replace(message, content=[part])
        shown, stored = [], []
        for part in content:
            given = self._without_bytes(part, named)
            shown.append(given)
            stored.append(self._without_large_text(given, named))
        return replace(message, content=shown), replace(message, content=stored)

    def _without_bytes(self, part: Part, named: list[str]) -> Part:
        known = part.get("artifact")
        if isinstance(known, str) and part.get("type") in ("image", "file"):
            self._known(known)
            named.append(known)
        data = part.get("data")
        if not isinstance(data, bytes | bytearray | memoryview):
            return part
        rest = {name: item for name, item in part.items() if name != "data"}
        # Its size stays with it: what a file costs is judged by that wherever its body is not at hand.
        return {**rest, "artifact": self._place(bytes(data), named), "size": len(data)}

    def _placed_results(self, message: Message, named: list[str]) -> Message:
        """Images and files that a tool gave."""
        if not any(isinstance(one.result, list) for one in message.tool_results):
            return message
        results = []
        for one in message.tool_results:
            if isinstance(one.result, list):
                parts = [self._without_bytes(part, named) if isinstance(part, dict) else part for part in one.result]
                one = replace(one, result=parts)  # noqa: PLW2901
            results.append(one)
        return replace(message, tool_results=tuple(results))

    def _known(self, name: str) -> None:
        """A part that refers to something already stored; a stranger's name is refused here, in words."""
        try:
            raw = bytes.fromhex(name)
        except ValueError:
            raise NotFound(f"{name!r:.80} is not the name of an artifact.") from None
        self._ports.journal.artifact(self._acting.tenant, raw)

    def _without_large_text(self, part: Part, named: list[str]) -> Part:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str) or not self._is_large(text):
            return part
        return {"type": "text", "artifact": self._place(_utf8(text), named)}

    def _is_large(self, text: str) -> bool:
        """Whether a text lies in an artifact: measured as it would be written, where a character may take six bytes."""
        return len(text) * 6 > self._most and len(msgspec.json.encode(text)) > self._most

    def _place_results(self, message: Message, named: list[str]) -> list[str | None]:
        """Large textual results as artifacts; others that are too large are refused when they are sealed."""
        found: list[str | None] = []
        for result in message.tool_results:
            large = isinstance(result.result, str) and self._is_large(result.result)
            found.append(self._place(_utf8(result.result), named) if large else None)
        return found


def _policy(given: str | None) -> str | None:
    """A policy as it is noted: what is normal needs no note."""
    priority_of(given)
    return None if given == "normal" else given


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("Text holds a lone surrogate, which is not Unicode. Clean the text first.") from None


def _plain(message: Message) -> Message:
    """Results of the caller's own types as plain data."""
    if not message.tool_results:
        return message
    return replace(
        message, tool_results=tuple(replace(result, result=_value(result.result)) for result in message.tool_results)
    )


def _value(result: Any) -> Any:
    if isinstance(result, str):
        return result
    if isinstance(result, bytes | bytearray | memoryview):
        raise InvalidMessage("A tool's result is text or plain data, not bytes. Return a file part, or decode it.")
    if isinstance(result, list) and any(isinstance(part, dict) and "data" in part for part in result):
        return result
    found = plain(result)
    try:
        encode(found)
    except InvalidValue as error:
        raise InvalidMessage(f"A tool's result cannot be stored: {error}") from None
    return found


def _size(message: Message) -> int:
    """Characters of everything that is text: close enough to bytes to refuse what is far too large."""
    size = len(message.content) if isinstance(message.content, str) else 0
    for part in message.content if isinstance(message.content, list) else ():
        size += len(part["text"]) if isinstance(part.get("text"), str) else 0
    size += sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
    return size + sum(len(one.result) if isinstance(one.result, str) else 0 for one in message.tool_results)
