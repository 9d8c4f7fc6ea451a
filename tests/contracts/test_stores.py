"""One contract over every store, and what only some of them can be asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.client.state import StateStore, open_store
from holdfast.records.scope import Scope
from holdfast.testing.store_contract import StoreContract
from holdfast.testing.store_contract.fixtures import MakeStore, OpenAt
from holdfast.testing.store_contract.hostile_keys import ACCEPTED_KEYS
from tests import redis_server
from tests.scale import seeded, volume


class OverStores(StoreContract):
    """The contract at the volume of this run, with new chance in every run."""

    scale = volume(1, 20)

    @pytest.fixture
    def random(self, request: pytest.FixtureRequest) -> Random:
        return seeded(request.node.nodeid)


class InMemory(OverStores):
    options: dict[str, Any] = {}

    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda clock, place, **options: open_store("memory:", clock=clock, **self.options, **options)


class TestMemoryStore(InMemory):
    pass


class TestMemoryStoreThatForgets(InMemory):
    options = {"most": 10_000}


class TestMemoryStoreThatSearches(InMemory):
    options = {"search": True}


class InFiles(OverStores):
    """Stores below a folder: `scheme:///…` and the options that all tests of a class open it with."""

    scheme = ""
    options: dict[str, Any] = {}

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(clock: Any, place: str, **options: Any) -> StateStore:
            return open_store(f"{self.scheme}:///{tmp_path / place}", clock=clock, **self.options, **options)

        return make


class InFolders(InFiles):
    """Stores of one file for each entry, which could lie anywhere."""

    scheme = "fs"

    def test_no_key_and_no_scope_leads_out_of_the_folder(
        self, open_at: OpenAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")
        stays_inside(lambda: open_at("a/b/root/store"), tmp_path)


def stays_inside(open_there: Callable[[], StateStore], folder: Path) -> None:
    """Whatever is written, nothing appears or changes outside the store's folder, which is a/b/root/store."""
    for name in ("a/b/root", "a/escape", "a/b/beside", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "secret.json").write_text("{}")
    before = outside(folder)
    store = open_there()
    reached = ("../secret", "../../beside/secret", "../../beside/secret.json", f"{folder}/work/secret")
    for number, key in enumerate((*ACCEPTED_KEYS, *reached)):
        assert store("global").read(key) is None
        store("global").write(key, "written")
        if number % 5 == 0:
            store("global").delete(key)
        if len(key) <= 128:
            assert store(Scope.user(key)).read("../secret") is None
            store(Scope.user(key)).write("../secret", "written")
    store.close()
    assert outside(folder) == before


def outside(folder: Path) -> list[object]:
    """Every path around the store with what is in it, and the names in the places that keys have tried to reach."""
    root = folder / "a/b/root/store"
    paths = [path for path in sorted(folder.rglob("*")) if not path.is_relative_to(root)]
    known = [(path, path.read_bytes() if path.is_file() else None) for path in paths]
    return [known, sorted(Path("/").iterdir()), sorted(Path("/etc").iterdir()), Path("/tmp/escape").exists()]


class TestFsStore(InFolders):
    pass


class TestFsStoreInMarkdown(InFolders):
    options = {"format": "markdown"}


class TestFsStoreThatSearches(InFolders):
    options = {"search": True}


class TestSqliteStore(InFiles):
    scheme = "sqlite"


class TestFastSqliteStore(InFiles):
    """The named choice that may lose the newest on power loss keeps every other promise."""

    scheme = "sqlite"
    options = {"durability": "fast"}


class TestCozoStore(InFiles):
    scheme = "cozo"


class TestCozoStoreInMemory(OverStores):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda clock, place, **options: open_store("cozo:", clock=clock, **options)


class TestRedisStore(OverStores):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        url = redis_server.running().url
        return lambda clock, place, **options: open_store(url, prefix=f"{tmp_path}/{place}", clock=clock, **options)


class OwnState(StateStore):
    """`hf.state` that takes its client with it, so that it can be closed and opened again like every other store."""

    def __init__(self, client: holdfast.Holdfast) -> None:
        super().__init__(client.state.storage)
        self._client = client

    def close(self) -> None:
        self._client.close()


class TestJournaledState(OverStores):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(clock: Any, place: str, **options: Any) -> StateStore:
            return OwnState(holdfast.open(tmp_path / f"{place}.db", clock=clock, **options))

        return make


class TestJournaledStateInMemory(OverStores):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda clock, place, **options: OwnState(holdfast.open("memory:", clock=clock, **options))
