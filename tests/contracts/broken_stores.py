"""Stores with one bug each, for the tests that must notice. They are what a backend could have been."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from fnmatch import translate
from pathlib import Path
from re import IGNORECASE, match
from typing import Any

from msgspec.structs import replace

from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.store.memory import MemoryStore


class IgnoresExpected(MemoryStore):
    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        return super().put(scope, key, entry)


class DropsWhateverIsThere(MemoryStore):
    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        return super().drop(scope, key)


class ComparesAndThenWrites(MemoryStore):
    """The check and the write are two steps, between which others come."""

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        if expected is not None and expected != self._version(scope, key):
            return None
        time.sleep(0.001)  # Another thread comes.
        return super().put(scope, key, entry)


class CountsFromTheEntry(MemoryStore):
    """A version is one more than the last: after a deletion it begins anew."""

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        before = self._version(scope, key)
        if super().put(scope, key, entry, expected, once) is None:
            return None
        self._entries[scope, key] = replace(entry, version=before + 1)
        return before + 1


class LikePrefix(MemoryStore):
    """`key LIKE 'prefix%'`, with the wildcards and the blindness for case that come with it."""

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        pattern = translate(page.prefix.replace("_", "?").replace("%", "*") + "*")
        found = super().page(scope, replace(page, prefix="", limit=10_000))
        return [item for item in found if match(pattern, item[0], IGNORECASE)][: page.limit]


class ListsWhatIsOver(MemoryStore):
    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        return super().page(scope, replace(page, now=0))


class LimitsBeforeItLooks(MemoryStore):
    """Rows are counted before those that are over are left out: a page ends too soon."""

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        return [item for item in super().page(scope, replace(page, now=0)) if item[1].is_live(page.now)]


class PagesOverlap(MemoryStore):
    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        found = super().page(scope, replace(page, after=None, limit=10_000))
        return [item for item in found if page.after is None or item[0] >= page.after][: page.limit]


class OrdersByUtf16(MemoryStore):
    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        found = super().page(scope, replace(page, limit=10_000))
        return sorted(found, key=lambda item: item[0].encode("utf-16-be"))[: page.limit]


class ScopesAreFolders(MemoryStore):
    """A scope's listing has what lies in scopes below it."""

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        within = [name for name in self._keys if name == scope or name.startswith(scope + "/")]
        found = [item for name in within for item in super(ScopesAreFolders, self).page(name, page)]
        return sorted(found, key=lambda item: item[0])[: page.limit]


class Renames(MemoryStore):
    """Keys go through something that makes one of two."""

    def rename(self, key: str) -> str:
        return key

    def get(self, scope: str, key: str) -> StoredEntry | None:
        return super().get(scope, self.rename(key))

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        return super().put(scope, self.rename(key), entry, expected, once)


class FoldsCase(Renames):
    def rename(self, key: str) -> str:
        return key.casefold()


class CutsKeys(Renames):
    def rename(self, key: str) -> str:
        return key[:255]


class ResolvesPaths(Renames):
    def rename(self, key: str) -> str:
        return "/".join(part for part in key.split("/") if part not in ("", ".", ".."))


class TrimsKeys(Renames):
    def rename(self, key: str) -> str:
        return key.strip(" .") or key


class ReadsNumbersAsFloats(MemoryStore):
    def get(self, scope: str, key: str) -> StoredEntry | None:
        entry = super().get(scope, key)
        return entry and replace(entry, value=json.dumps(json.loads(entry.value, parse_int=float)).encode())


class ForgetsOptions(MemoryStore):
    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        return super().put(scope, key, replace(entry, salience=None), expected, once)


class PurgesNothing(MemoryStore):
    def _purge(self, now: int, most: int) -> int:
        return 0


class PurgesWhatWasWrittenAnew(MemoryStore):
    """It goes by the date of an earlier write."""

    def _purge(self, now: int, most: int) -> int:
        over = {(scope, key) for at, scope, key, _ in self._dates if at <= now and (scope, key) in self._entries}
        for place in over:
            self._remove(*place)
        return len(over)


class PurgesWithoutLooking(MemoryStore):
    def purge(self, now: int) -> int:
        return super().purge(2**62)


class SearchesEveryScope(MemoryStore):
    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        return [found for name in self._keys for found in super(SearchesEveryScope, self).search(name, wanted)]


class FindsWhatIsOver(MemoryStore):
    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        return super().search(scope, replace(wanted, now=0))


class KeepsOldWords(MemoryStore):
    """Words are added to the index when an entry is written, and never taken away."""

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        before = self._words.get((scope, key), "")
        version = super().put(scope, key, entry, expected, once)
        self._words[scope, key] += before
        return version


class FindsNothing(MemoryStore):
    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        return []


class TakesAnyKind(MemoryStore):
    def unlink(self, edge: Edge) -> bool:
        found = self.edges(EdgeQuery(scope=edge.scope, keys=(edge.source,)))
        return sum(super(TakesAnyKind, self).unlink(one) for one in found if one.target == edge.target) > 0


class IgnoresKinds(MemoryStore):
    def edges(self, query: EdgeQuery) -> list[Edge]:
        return super().edges(replace(query, kinds=()))


class IgnoresDirection(MemoryStore):
    def edges(self, query: EdgeQuery) -> list[Edge]:
        return super().edges(replace(query, direction="out"))


class KeepsTheFirstData(MemoryStore):
    def link(self, edge: Edge) -> None:
        known = self.edges(EdgeQuery(scope=edge.scope, keys=(edge.source,), kinds=(edge.kind,)))
        if edge.target not in [one.target for one in known]:
            super().link(edge)


class NeverCloses(MemoryStore):
    def close(self) -> None:
        """Goes on as if nothing had happened."""


class SaysItIsDurable(MemoryStore):
    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"durable"}


class JoinsPaths(MemoryStore):
    """`root/scope/key.json`, as it is written down; only what would leave `around` is not made after all."""

    def __init__(self, root: Path, around: Path) -> None:
        super().__init__()
        self._root, self._around = root, around

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        path = (self._root / scope / f"{key}.json").resolve()
        if path.is_relative_to(self._around):
            with suppress(OSError):  # Names that are too long, and files where a folder should be.
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(entry.value)
        return super().put(scope, key, entry, expected, once)
