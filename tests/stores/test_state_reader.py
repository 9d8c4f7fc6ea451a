"""A StateReader reads, and nothing that can be reached from it writes."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.client.state import ReadableState, State, StateReader, StateStore, open_store
from holdfast.flow.state import search, write
from holdfast.flow.state import store as state_store
from holdfast.flow.state.journal_store import JournalStore
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.ports import Store
from holdfast.store.memory import MemoryStore
from holdfast.testing.store_contract.fixtures import store_backend

WRITERS = (Storage, State, StateStore, MemoryStore, JournalStore, TransientEntries, holdfast.Holdfast)
WRITING = ("write", "delete", "link", "unlink", "clear_transient", "end_session", "put", "drop", "datalog", "close")


OF_FUNCTIONS = {"__dict__", "__self__", "__func__", "__wrapped__", "__defaults__", "__kwdefaults__", "__annotations__"}


@pytest.fixture(params=["memory", "journaled"])
def store(request: pytest.FixtureRequest) -> Iterator[StateStore]:
    if request.param == "memory":
        with open_store("memory:") as opened:
            yield opened
    else:
        with holdfast.open("memory:") as client:
            yield client.state


@pytest.fixture
def reader(store: StateStore) -> StateReader:
    store("user/42").write("k", 1)
    return store("user/42").reader()


def attributes(thing: object) -> Iterator[tuple[str, object]]:
    """Everything that an attribute, a slot or an item gives, but neither what a function closed over nor its module."""
    names = {name for name in dir(thing) if not name.startswith("__")} | OF_FUNCTIONS
    names |= set(getattr(thing, "__slots__", ()) or ()) | set(getattr(thing, "__dict__", ()) or ())
    for name in sorted(names):
        try:
            yield name, getattr(thing, name)
        except AttributeError:
            continue
    if isinstance(thing, dict):
        yield from ((f"[{key!r:.20}]", item) for key, item in list(thing.items()))
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{number}]", item) for number, item in enumerate(list(thing)))


def ways_to_a_writer(start: object, kinds: tuple[type, ...] = WRITERS, depth: int = 6) -> list[str]:
    """The names that lead from an object to one that can write."""
    found: list[str] = []
    known: list[object] = [start]
    seen, todo = {id(start)}, [("", start, 0)]
    while todo:
        path, thing, distance = todo.pop()
        for name, value in attributes(thing):
            if isinstance(value, kinds):
                found.append(f"{path}.{name}")
            leaf = isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | str | bytes | int | float)
            if leaf or value is None or id(value) in seen or distance >= depth:
                continue
            seen.add(id(value))
            known.append(value)  # Kept alive, so that no other object gets its id.
            todo.append((f"{path}.{name}", value, distance + 1))
    return found


def test_a_reader_has_no_way_to_write(reader: StateReader) -> None:
    for name in WRITING:
        assert not hasattr(reader, name), name
    assert not hasattr(reader, "__dict__")
    for name in ("write", "_storage", "anything"):
        with pytest.raises(AttributeError):
            setattr(reader, name, None)


def test_nothing_that_a_reader_has_leads_to_a_writer(reader: StateReader) -> None:
    for one in (reader, reader("user/43"), reader.read, reader.entry("k"), reader.entries()):
        assert ways_to_a_writer(one) == []


def test_the_search_for_ways_finds_those_that_there_are(store: StateStore) -> None:
    class Careless(StateReader):
        __slots__ = ("kept",)

    def bound() -> None:
        """Carries its store as an attribute."""

    bound.hidden = {"deep": [store("user/42")]}  # type: ignore[attr-defined]
    careless = Careless(store.storage, "user/42")
    assert ways_to_a_writer(careless) == []
    careless.kept = (bound,)
    assert ways_to_a_writer(careless)
    assert ways_to_a_writer(store("user/42"), depth=1)
    assert isinstance(store_backend(store), WRITERS)


class Pretender:
    """Equal to a flow that only reads, and keeps whatever it is handed."""

    def __init__(self, flow: Callable[..., Any]) -> None:
        self.flow, self.handed = flow, ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self.flow)

    def __call__(self, *given: Any) -> None:
        self.handed = given


def test_only_flows_that_read_are_handed_the_store(reader: StateReader, store: StateStore) -> None:
    refused: list[Any] = [
        write.write_entry,
        write.delete_entry,
        write.clear_scope_transients,
        write.delete_session_entries,
        state_store.find_entry,
    ]
    refused += [
        search.link_keys,
        search.unlink_keys,
        state_store.list_stored,
        write.build_entry,
        state_store.run_datalog,
        lambda *given: given,
        None,
    ]
    pretenders = [Pretender(flow) for flow in (state_store.read_value, state_store.list_keys, search.search_scope)]
    for flow in (*refused, *pretenders):
        with pytest.raises(TypeError, match="only reads"):
            reader._run_flow(flow, "k", write.EntryWrite(value=2))
    assert [one.handed for one in pretenders] == [()] * 3
    assert store("user/42").read("k") == 1


def test_what_a_caller_hands_in_is_given_no_store(reader: StateReader) -> None:
    """Types, defaults and addresses are the caller's own objects: they are given values alone."""
    handed: list[object] = []

    class Kind:
        @classmethod
        def model_validate(cls, *given: object) -> None:
            handed.extend(given)

    class Key(str):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            handed.append(name)
            return super().__getattribute__(name)

    reader.read("k", as_=Kind)
    reader.read(Key("k"))
    reader(Key("user/42")).list(Key(""))
    assert handed
    assert not any(isinstance(one, WRITERS) for one in handed)


def test_every_method_of_a_reader_is_one_of_reading(reader: StateReader) -> None:
    public = {name for name in dir(StateReader) if not name.startswith("_")} - {"scope"}
    assert public == {name for name in vars(ReadableState) if not name.startswith("_")}
    assert public == {"read", "require", "entry", "list", "entries", "search", "history", "neighbours", "traverse"}
    assert issubclass(State, ReadableState)
    assert set(WRITING) & set(dir(Store)) == {"put", "drop", "link", "unlink", "close"}
