"""What a StateReader raises or calls has frames, and nothing in them writes either."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.client.state import State, StateReader, StateStore, open_store
from holdfast.errors import Corrupt, EntryNotFound, HoldfastError
from holdfast.flow.state import store as state_store
from holdfast.flow.state.journal_store import JournalStore
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.records.entries import StoredEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.store_contract.fixtures import SCOPE


def _everything_in(frame: Any) -> Iterator[object]:
    for value in frame.f_locals.values():
        yield value
        if isinstance(value, Storage):
            yield from (value.store, value.transients)


def _writers_in(frames: list[Any]) -> list[object]:
    writing = (State, StateStore, JournalStore, MemoryStore, TransientEntries)
    found = [value for frame in frames for value in _everything_in(frame)]
    bound = [getattr(value, "__self__", None) for value in found]
    return [value for value in (*found, *bound) if isinstance(value, writing)]


def _frames_of(error: BaseException | None) -> list[Any]:
    frames = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return frames[1:]  # The first is of whoever asks.


@pytest.fixture(params=["memory", "journaled"])
def reader(request: pytest.FixtureRequest) -> Iterator[StateReader]:
    opened: Any = open_store("memory:") if request.param == "memory" else holdfast.open("memory:")
    with opened:
        store: StateStore = opened if request.param == "memory" else opened.state
        store(SCOPE).write("k", 1)
        yield store(SCOPE).reader()


def _asked(view: StateReader) -> list[list[Any]]:
    """The frames that one gets at by asking for what there is not, and by being asked to convert something."""
    stacks: list[list[Any]] = []

    class Kind:
        @classmethod
        def model_validate_json(cls, data: bytes) -> int:
            frame, frames = sys._getframe().f_back, []
            while frame is not None and frame.f_code is not _asked.__code__:
                frames.append(frame)
                frame = frame.f_back
            stacks.append(frames)
            return 1

    view.read("k", as_=Kind)
    for ask in (lambda: view.require("none"), lambda: view.list(limit=0), lambda: view.read("k", as_=list[str])):
        with pytest.raises(HoldfastError) as caught:
            ask()
        stacks.append(_frames_of(caught.value))
    return stacks


def test_nothing_that_a_reader_raises_or_calls_leads_to_a_writer(
    reader: StateReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for frames in (*_asked(reader), *_asked(reader("user/43")(SCOPE))):
        assert _writers_in(frames) == []
        storages = [value for frame in frames for value in _everything_in(frame) if isinstance(value, Storage)]
        for name in ("put", "drop", "link", "unlink", "purge", "clear", "answered", "close", "datalog"):
            assert not any(hasattr(part, name) for one in storages for part in (one.store, one.transients))
    monkeypatch.setattr("holdfast.client.state.make_read_only", lambda storage: storage)
    with open_store("memory:") as store:
        store(SCOPE).write("k", 1)
        assert any(_writers_in(frames) for frames in _asked(store(SCOPE).reader()))


def test_what_fails_inside_the_store_is_told_without_the_way_there() -> None:
    class Damaged(MemoryStore):
        def get(self, scope: str, key: str) -> StoredEntry | None:
            try:
                raise ValueError
            except ValueError:
                raise Corrupt("This is damaged.") from None

    with open_store("memory:") as opened:
        storage = Storage(
            store=Damaged(),
            clock=opened.storage.clock,
            settings=opened.storage.settings,
            transients=opened.storage.transients,
            tenant="default",
        )
        with pytest.raises(Corrupt, match="damaged") as caught:
            StateReader(storage, SCOPE).read("k")
        assert _writers_in(_frames_of(caught.value)) == []
        with pytest.raises(EntryNotFound) as missing:
            opened(SCOPE).reader().require("k")
        assert (missing.value.scope, missing.value.key) == (SCOPE, "k")


def test_a_view_of_a_view_is_no_deeper() -> None:
    with open_store("memory:") as store:
        once = state_store.make_read_only(store.storage)
        assert state_store.make_read_only(once) is once
