"""The catalogue: names for ever, facts without free text, fold and project total over all of it."""

from __future__ import annotations

import itertools
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from holdfast.core.journal import fold as folding
from holdfast.core.journal import project as projecting
from holdfast.core.journal.codec import decode_facts, encode, upcast_facts
from holdfast.core.journal.fold import fold_facts
from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import ShadowRows
from holdfast.core.journal.tables import TABLES
from holdfast.errors import Corrupt, NewerSchema
from holdfast.records.batches import RowDelete, RowIncrement, RowInsert, RowReplace, RowUpdate
from holdfast.records.catalogue import CATALOGUE, event_type
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text

DOCUMENTED = [
    "frame.pushed",
    "frame.updated",
    "frame.popped",
    "frame.suspended",
    "frame.resumed",
    "frame.handle_added",
    "frame.result_added",
    "frame.compacted",
    "actor.resumed",
]


def test_the_nine_events_of_the_source_documents_exist_under_their_names() -> None:
    assert [name for name in DOCUMENTED if name not in CATALOGUE] == []


def test_names_are_a_noun_and_what_happened_to_it() -> None:
    for name, row in CATALOGUE.items():
        noun, verb = name.split(".")
        assert name == name.lower()
        assert noun.isidentifier()
        assert verb.isidentifier()
        assert row.schema == 1
        assert row.facts.__doc__
        assert set(row.minted) <= set(row.facts.__struct_fields__)


def _example(kind: Any, counter: Any) -> Any:
    """Some value of a type, so that every event can be made."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is not None and type(None) in arguments:
        return _example(arguments[0], counter)
    if kind is str:
        return ulid_text(next(counter).to_bytes(16, "big"))
    if kind in (int, float, bool):
        return kind(next(counter) % 2)
    if kind is bytes:
        return b"x"
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return tuple(_example(argument, counter) for argument in arguments)
        return (_example(arguments[0], counter),)
    if origin is dict:
        return {"k": _example(arguments[1], counter)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _facts(kind, counter)
    return "any"


def _facts(kind: type[msgspec.Struct], counter: Any) -> Any:
    hints = get_type_hints(kind)
    values = {name: _example(hints[name], counter) for name in kind.__struct_fields__}
    for name in ("artifacts", "token", "context_hash", "tools"):
        if name in values:
            values[name] = ("ab" * 32,) if name == "artifacts" else "cd" * 32
    return kind(**values)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_event_is_encoded_decoded_folded_and_projected(name: str) -> None:
    facts = _facts(CATALOGUE[name].facts, itertools.count())
    assert decode_facts(name, 1, encode(facts)) == facts
    state = fold_facts(StreamState(), name, facts, 1, 1000)
    assert state.version == 1
    shadow = ShadowRows()
    for change in project_event(name, facts, 1, 1000):
        shadow.apply(change)
        table = TABLES[change.table]
        if isinstance(change, RowInsert | RowReplace):
            assert tuple(change.row) == table.column_names, "a row must fill its table's columns in their order"
        else:
            assert isinstance(change, RowUpdate | RowIncrement | RowDelete)
            assert len(change.key) == len(table.key)


def test_fold_and_project_know_the_same_events() -> None:
    known = set(folding._FRAME_RULES) | {"lease.taken", "stream.closed"}
    assert set(projecting._FRAME_ROW_RULES) <= known
    assert known <= set(CATALOGUE)
    assert set(folding._FRAME_RULES) == set(projecting._FRAME_ROW_RULES)
    conversations = set(folding.THREAD_RULES) | set(folding.SESSION_RULES)
    assert conversations <= set(projecting.SESSION_ROW_RULES)
    assert set(projecting.SESSION_ROW_RULES) - conversations == {"message.pinned", "tokens.counted"}, "rows, no state"


def test_unknown_types_fold_to_a_version_and_change_no_row() -> None:
    assert event_type("future.happened") is None
    assert fold_facts(StreamState(), "future.happened", {}, 7, 0) == StreamState(version=7)
    assert project_event("future.happened", {"a": 1}, 7, 0) == []


def test_application_events_are_read_as_such() -> None:
    assert decode_facts("app.anything", 1, b'{"data":{"n":1}}').data == {"n": 1}


def test_old_facts_climb_step_by_step() -> None:
    steps = {
        ("frame.pushed", 1): lambda facts: {**facts, "two": 2},
        ("frame.pushed", 2): lambda facts: {**facts, "three": facts["two"] + 1},
    }
    assert upcast_facts("frame.pushed", 1, 3, {"one": 1}, steps) == {"one": 1, "two": 2, "three": 3}
    assert upcast_facts("frame.pushed", 3, 3, {"one": 1}, steps) == {"one": 1}
    with pytest.raises(Corrupt, match="no way up"):
        upcast_facts("frame.pushed", 1, 4, {}, steps)


def test_a_newer_schema_of_a_known_event_is_refused() -> None:
    with pytest.raises(NewerSchema, match="Upgrade"):
        decode_facts("frame.pushed", 2, b"{}")
