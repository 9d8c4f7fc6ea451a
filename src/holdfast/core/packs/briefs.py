"""Briefs: the beginning of every pack, combined from several places. Pure.

Each field is taken from the nearest place that sets it. Only fields set by the system or an operator appear in the
system prompt and among the tools. Fields from others are shown as data beside them, and never replace them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import encode
from holdfast.core.msgspec_types import converted
from holdfast.core.packs.fences import BRIEF_LABEL, INPUTS_LABEL, TRUSTED, Mark, fenced, lowest
from holdfast.core.sessions.message_events import ERASED_TEXT
from holdfast.core.values import plain
from holdfast.core.wire.tools import tool_defs
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import BriefContext, Origin

FIELDS: Final = ("system_prompt", "invariants", "working_context", "tools")
INPUTS: Final = "inputs"
INVARIANTS_LABEL: Final = "What must always hold:"
CONTEXT_LABEL: Final = "What is being worked on:"
NOTES_ID: Final = "brief/notes"
INPUTS_ID: Final = "brief/inputs"


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The brief of one place: the fields that are taken from it, and if their content was erased."""

    origin: Origin
    trust: str
    fields: dict[str, Any]
    erased: bool = False

    @property
    def trusted(self) -> bool:
        """True if it may stand in the system prompt."""
        return self.trust in TRUSTED


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A brief as it is shown: the system prompt and tools, and notes before the messages."""

    context: BriefContext
    """The fields from those who may instruct the model."""
    system: str | None
    tools: tuple[ToolDef, ...]
    notes: tuple[Message, ...]
    """The fields from others, and a frame's inputs: data in fences."""


# Storing


def stored_brief(*, system_prompt: object, invariants: object, working_context: Any, tools: Any) -> dict[str, Any]:
    """Check the given fields and return the brief as it is stored. An empty value sets a field to nothing."""
    value: dict[str, Any] = {}
    if system_prompt is not None:
        if not isinstance(system_prompt, str):
            raise InvalidValue(f"system_prompt must be text, not {type(system_prompt).__name__}.")
        value["system_prompt"] = system_prompt
    if invariants is not None:
        value["invariants"] = _checked_invariants(invariants)
    if working_context is not None:
        value["working_context"] = plain(working_context)
    if tools is not None:
        value["tools"] = msgspec.to_builtins(tool_defs(tools))
    return value


def _checked_invariants(given: object) -> list[str]:
    if not isinstance(given, list | tuple):
        raise InvalidValue("invariants must be a list of texts, each of which says one thing that must always hold.")
    for item in given:
        if not isinstance(item, str) or not item.strip():
            raise InvalidValue(f"An invariant is a text that says what must always hold, not {item!r:.60}.")
    return list(given)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the valid fields of a stored brief. Others may have written anything under its key: that is ignored."""
    if not isinstance(value, dict):
        return {}
    found: dict[str, Any] = {}
    if isinstance(value.get("system_prompt"), str):
        found["system_prompt"] = value["system_prompt"]
    if isinstance(value.get("invariants"), list) and all(isinstance(item, str) for item in value["invariants"]):
        found["invariants"] = value["invariants"]
    if value.get("working_context") is not None:
        found["working_context"] = value["working_context"]
    if value.get("tools") is not None:
        try:
            found["tools"] = converted(value["tools"], tuple[ToolDef, ...])
        except msgspec.ValidationError:
            pass
    return found


def erased_fields(names: Iterable[str]) -> dict[str, Any]:
    """Return placeholders for fields whose content was erased."""
    stands = {"invariants": [ERASED_TEXT], "tools": ()}
    return {name: stands.get(name, ERASED_TEXT) for name in names}


# Choosing


def chosen(found: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that count, each with the fields that are taken from it. `found` has the nearest first.

    Pieces from others than the system and operators hide no trusted fields, and add no tools.
    """
    trusted: set[str] = set()
    others: set[str] = set()
    used = []
    for piece in found:
        hidden = trusted if piece.trusted else {*trusted, *others, "tools"}
        said = {name: value for name, value in piece.fields.items() if name not in hidden}
        (trusted if piece.trusted else others).update(said)
        shown = {name: value for name, value in said.items() if not _is_empty(value)}
        if shown:
            used.append(replace(piece, fields=shown))
    return used


def _is_empty(value: Any) -> bool:
    return isinstance(value, str | list | tuple | dict) and not value


# Rendering


def rendered(pieces: Sequence[Piece], mark: Mark) -> Rendered:
    """Render pieces. The same pieces are always rendered the same."""
    said = _merged(piece for piece in pieces if piece.trusted)
    context = BriefContext(
        system_prompt=said.get("system_prompt"),
        invariants=tuple(said.get("invariants", ())),
        working_context=said.get("working_context"),
        available_tools=said.get("tools", ()),
    )
    return Rendered(
        context=context,
        system=_text(said) or None,
        tools=context.available_tools,
        notes=(*_notes(pieces, mark), *_inputs(pieces, mark)),
    )


def _merged(pieces: Iterable[Piece]) -> dict[str, Any]:
    return {name: value for piece in pieces for name, value in piece.fields.items() if name in FIELDS}


def _text(said: Mapping[str, Any]) -> str:
    """Return the text of a system prompt; without other fields it is exactly the prompt."""
    parts = [said.get("system_prompt", "")]
    if said.get("invariants"):
        items = [item.strip().replace("\n", "\n  ") for item in said["invariants"]]
        parts.append("\n".join((INVARIANTS_LABEL, *(f"- {item}" for item in items))))
    if "working_context" in said:
        parts.append(f"{CONTEXT_LABEL}\n{encode(said['working_context']).decode()}")
    return "\n\n".join(part for part in parts if part)


def _notes(pieces: Sequence[Piece], mark: Mark) -> list[Message]:
    others = [piece for piece in pieces if not piece.trusted and INPUTS not in piece.fields]
    text = _text(_merged(others))
    return [_note(BRIEF_LABEL, text, mark(NOTES_ID), others)] if text else []


def _inputs(pieces: Sequence[Piece], mark: Mark) -> list[Message]:
    """Return the inputs of a frame. They are data, regardless of who pushed the frame."""
    given = [piece for piece in pieces if INPUTS in piece.fields]
    return [_note(INPUTS_LABEL, _as_text(piece.fields[INPUTS]), mark(INPUTS_ID), [piece]) for piece in given]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _note(label: str, text: str, mark: str, pieces: Sequence[Piece]) -> Message:
    trust = lowest(*(piece.trust for piece in pieces))
    return Message(role="user", content=fenced(label, text, mark), trust=trust)
