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
from holdfast.core.lazy import convert
from holdfast.core.packs.fences import BRIEF_LABEL, INPUTS_LABEL, Mark, fence_text
from holdfast.core.trust import TRUSTED_LEVELS, lowest_trust
from holdfast.core.values import to_plain
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.core.wire.tools import read_tool_defs
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import BriefContext, Origin

BRIEF_FIELDS: Final = ("system_prompt", "invariants", "working_context", "tools")
INPUTS_FIELD: Final = "inputs"
INVARIANTS_LABEL: Final = "What must always hold:"
CONTEXT_LABEL: Final = "What is being worked on:"
NOTES_ID: Final = "brief/notes"
INPUTS_ID: Final = "brief/inputs"


class BriefPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The brief of one place: the fields that are taken from it, and if their content was erased."""

    origin: Origin
    trust: str
    fields: dict[str, Any]
    erased: bool = False

    @property
    def trusted(self) -> bool:
        """True if it may stand in the system prompt."""
        return self.trust in TRUSTED_LEVELS


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """A brief as it is shown: the system prompt and tools, and notes before the messages."""

    context: BriefContext
    """The fields from those who may instruct the model."""
    system: str | None
    tools: tuple[ToolDef, ...]
    notes: tuple[Message, ...]
    """The fields from others, and a frame's inputs: data in fences."""
    origins: tuple[Origin, ...]
    """The origin of each piece."""
    erased: tuple[str, ...]
    """Fields whose content was erased since they were first shown."""


def check_brief(*, system_prompt: object, invariants: object, working_context: Any, tools: Any) -> dict[str, Any]:
    """Check the given fields and return the brief as it is stored. An empty value sets a field to nothing."""
    value: dict[str, Any] = {}
    if system_prompt is not None:
        if not isinstance(system_prompt, str):
            raise InvalidValue(f"system_prompt must be text, not {type(system_prompt).__name__}.")
        value["system_prompt"] = system_prompt
    if invariants is not None:
        if not isinstance(invariants, list | tuple):
            raise InvalidValue(
                "invariants must be a list of texts, each of which says one thing that must always hold."
            )
        for item in invariants:
            if not isinstance(item, str) or not item.strip():
                raise InvalidValue(f"An invariant is a text that says what must always hold, not {item!r:.60}.")
        value["invariants"] = list(invariants)
    if working_context is not None:
        value["working_context"] = to_plain(working_context)
    if tools is not None:
        value["tools"] = msgspec.to_builtins(read_tool_defs(tools))
    return value


def brief_fields(value: Any) -> dict[str, Any]:
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
            found["tools"] = convert(value["tools"], tuple[ToolDef, ...])
        except msgspec.ValidationError:
            pass
    return found


def make_erased_fields(names: Iterable[str]) -> dict[str, Any]:
    """Return placeholders for fields whose content was erased."""
    stands = {"invariants": [ERASED_TEXT], "tools": ()}
    return {name: stands.get(name, ERASED_TEXT) for name in names}


def choose_pieces(found: Iterable[BriefPiece]) -> list[BriefPiece]:
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
        shown = {
            name: value for name, value in said.items() if value or not isinstance(value, str | list | tuple | dict)
        }
        if shown:
            used.append(replace(piece, fields=shown))
    return used


def render_brief(pieces: Sequence[BriefPiece], mark: Mark) -> Brief:
    """Render pieces. The same pieces are always rendered the same."""
    said = _merge_fields(piece for piece in pieces if piece.trusted)
    context = BriefContext(
        system_prompt=said.get("system_prompt"),
        invariants=tuple(said.get("invariants", ())),
        working_context=said.get("working_context"),
        available_tools=said.get("tools", ()),
    )
    others = [piece for piece in pieces if not piece.trusted and INPUTS_FIELD not in piece.fields]
    text = _render_text(_merge_fields(others))
    notes = [_make_note(BRIEF_LABEL, text, mark(NOTES_ID), others)] if text else []
    for piece in pieces:
        if INPUTS_FIELD in piece.fields:
            # The inputs of a frame are data, regardless of who pushed the frame.
            given = piece.fields[INPUTS_FIELD]
            text = given if isinstance(given, str) else encode(given).decode()
            notes.append(_make_note(INPUTS_LABEL, text, mark(INPUTS_ID), [piece]))
    return Brief(
        context=context,
        system=_render_text(said) or None,
        tools=context.available_tools,
        notes=tuple(notes),
        origins=tuple(piece.origin for piece in pieces),
        erased=tuple(name for piece in pieces if piece.erased for name in piece.fields),
    )


def _merge_fields(pieces: Iterable[BriefPiece]) -> dict[str, Any]:
    return {name: value for piece in pieces for name, value in piece.fields.items() if name in BRIEF_FIELDS}


def _render_text(said: Mapping[str, Any]) -> str:
    """Return the text of a system prompt; without other fields it is exactly the prompt."""
    parts = [said.get("system_prompt", "")]
    if said.get("invariants"):
        items = [item.strip().replace("\n", "\n  ") for item in said["invariants"]]
        parts.append("\n".join((INVARIANTS_LABEL, *(f"- {item}" for item in items))))
    if "working_context" in said:
        parts.append(f"{CONTEXT_LABEL}\n{encode(said['working_context']).decode()}")
    return "\n\n".join(part for part in parts if part)


def _make_note(label: str, text: str, mark: str, pieces: Sequence[BriefPiece]) -> Message:
    trust = lowest_trust(*(piece.trust for piece in pieces))
    return Message(role="user", content=fence_text(label, text, mark), trust=trust)
