"""The store in files: folders mirror scopes, one file is one entry, and people can read and copy both.

    session/s1/user_preference.json
    session/s1/history/turn-1.json

Any number of threads and processes of one machine may use a folder. Reading takes no lock, since a file is
replaced whole. Folders are private, and no symbolic link in them is followed.

"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

from msgspec.structs import replace

from holdfast.core.search.words import indexed, spaced
from holdfast.errors import Corrupt, InvalidValue, OutcomeUnknown, Unsupported
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Stored, Wanted
from holdfast.records.scope import KINDS
from holdfast.store.fs import format as file_format
from holdfast.store.fs.files import Names, Tree, make_private, may_hold, reporting, walk
from holdfast.store.fs.format import (
    KINDS_OF_FILE,
    SUFFIXES,
    digested,
    folder_text,
    homes_of,
    key_of,
    key_path,
    scope_paths,
)
from holdfast.store.fs.lock import Turn, Turns
from holdfast.system import SystemClock

Format = Literal["json", "markdown"]


class _File(NamedTuple):
    """A file that holds, or may hold, an entry."""

    folder: Names
    name: str
    kind: str

    @property
    def names(self) -> Names:
        return (*self.folder, self.name)


class FsStore:
    """Entries in files below a folder. Both formats are read; new files get the chosen one."""

    def __init__(self, root: str | os.PathLike[str], *, format: Format = "json", search: bool = False) -> None:
        if format not in SUFFIXES:
            raise InvalidValue(f"format must be one of {', '.join(SUFFIXES)}, not {format!r}.")
        if os.open not in os.supports_dir_fd:
            raise Unsupported("This system cannot open files safely below a folder. Use a sqlite store here.")
        self._format = format
        self._search = search
        # Resolved once: a store stays where it was opened, whatever the current folder is later.
        self.root = Path(root).resolve()
        make_private(self.root)
        self._tree = Tree(self.root)
        self._turns = Turns(self._tree)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"durable", "shared", "text"} if self._search else {"durable", "shared"})

    # reading

    def get(self, scope: str, key: str) -> Stored | None:
        with reporting(self.root):
            return self._newest(scope, key)[0]

    def page(self, scope: str, page: EntryPage) -> list[tuple[str, Stored]]:
        with reporting(self.root):
            found: list[tuple[str, Stored]] = []
            for key in self._keys(scope, page.prefix, page.after):
                entry = self._newest(scope, key)[0]
                # Entries deleted meanwhile are skipped.
                if entry is None or not entry.live(page.now):
                    continue
                if page.lifetime is None or entry.lifetime == page.lifetime:
                    found.append((key, entry))
                if len(found) == page.limit:
                    break
            return found

    def search(self, scope: str, wanted: Wanted) -> list[Match]:
        """Return live entries scored by the number of terms found, also as prefixes of words; no other ranking."""
        if not self._search:
            return []
        terms = [_searched(spaced(term)) for term in wanted.terms]
        found = []
        with reporting(self.root):
            for key in self._keys(scope, "", None):
                entry = self._newest(scope, key)[0]
                if entry is None or not entry.live(wanted.now):
                    continue
                words = _searched(indexed(entry.words or ""))
                score = sum(term in words for term in terms)
                if score:
                    found.append(Match(key=key, entry=entry, text=float(score)))
        return sorted(found, key=lambda match: (-match.text, match.key))[: wanted.limit]

    # writing

    def put(
        self, scope: str, key: str, entry: Stored, expected: int | None = None, once: str | None = None
    ) -> int | None:
        with self._turns.take() as turn:
            known, files = self._newest(scope, key)
            previous = 0 if known is None else known.version
            if expected is not None and expected != previous:
                return None
            version = turn.version(previous)
            body = file_format.written(self._format, key, replace(entry, version=version))
            place = self._place(scope, key)
            with turn.changing(place.folder), self._tree.folder(place.folder, make=True) as folder:
                assert folder is not None
                self._tree.write(folder, place.name, body)
            try:
                # Old files in the other format, or in the former `agent` folder, may go: the new one is on disk.
                self._remove(turn, [file for file in files if file != place])
            except (OSError, OutcomeUnknown):
                pass  # An older file is ignored. The next write tries to remove it again.
            return version

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        with self._turns.take() as turn:
            if expected is None:
                # Without reading, so that a damaged entry can be deleted.
                files = [file for file, folder in self._files(scope, key) if self._tree.has(folder, file.names)]
            else:
                known, files = self._newest(scope, key)
                if expected != (0 if known is None else known.version):
                    return None
            self._remove(turn, files)
            return bool(files)

    def purge(self, now: int) -> int:
        """Read every file and delete expired entries, each under its own lock. Damaged files are left."""
        with reporting(self.root):
            over = sorted(expired(self._tree, now))
        return sum(self._end(homes, key, now) for homes, key in over)

    def _end(self, homes: tuple[Names, ...], key: str, now: int) -> bool:
        with self._turns.take() as turn:
            try:
                known, files = self._newest_in(homes, key)
            except Corrupt:
                return False
            over = known is not None and not known.live(now)
            self._remove(turn, files if over else [])
            return over

    def _remove(self, turn: Turn, files: list[_File]) -> None:
        for file in files:
            with turn.changing(file.folder):
                with self._tree.folder(file.folder) as folder:
                    if folder is not None:
                        self._tree.unlink(folder, file.name)
                self._tree.remove_empty(file.folder)

    # the graph, which files do not have

    def link(self, edge: Edge) -> None:
        _no_graph()

    def unlink(self, edge: Edge) -> bool:
        _no_graph()

    def edges(self, query: EdgeQuery) -> list[Edge]:
        _no_graph()

    def close(self) -> None:
        self._tree.close()

    # where things are

    def _place(self, scope: str, key: str) -> _File:
        *folders, name = key_path(key)
        return _File((*scope_paths(scope)[0], *folders), name + SUFFIXES[self._format], self._format)

    def _files(self, scope: str, key: str) -> Iterator[tuple[_File, int]]:
        """Yield every file that may hold an entry, with its open folder."""
        return self._files_in(scope_paths(scope), key)

    def _files_in(self, homes: tuple[Names, ...], key: str) -> Iterator[tuple[_File, int]]:
        *folders, name = key_path(key)
        for home in homes:
            path = (*home, *folders)
            with self._tree.folder(path) as folder:
                if folder is not None:
                    yield from ((_File(path, name + suffix, kind), folder) for kind, suffix in SUFFIXES.items())

    def _newest(self, scope: str, key: str) -> tuple[Stored | None, list[_File]]:
        """Return an entry and its files. If a killed writer left several, the newest counts."""
        return self._newest_in(scope_paths(scope), key)

    def _newest_in(self, homes: tuple[Names, ...], key: str) -> tuple[Stored | None, list[_File]]:
        found = []
        for file, folder in self._files_in(homes, key):
            data = self._tree.read(folder, file.names)
            if data is not None:
                found.append((self._read(file, data, key), file))
        # Oldest first: they are removed in this order, so that an old value cannot come back.
        found.sort(key=lambda each: each[0].version)
        return (found[-1][0] if found else None), [file for _, file in found]

    def _read(self, file: _File, data: bytes, key: str | None) -> Stored:
        inside, entry = self._parsed(file, data)
        if inside != key:
            raise self._damaged(file, f"it holds {inside!r}")
        return entry

    def _parsed(self, file: _File, data: bytes) -> tuple[str, Stored]:
        try:
            return file_format.read(file.kind, data)
        except file_format.Damaged as error:
            raise self._damaged(file, str(error)) from None

    def _damaged(self, file: _File, why: str) -> Corrupt:
        path = self._tree.path(file.names)
        return Corrupt(f"{path} is damaged: {why}. Restore it from a backup, or delete the entry.")

    def _keys(self, scope: str, prefix: str, after: str | None) -> list[str]:
        """Return keys of a scope in order, from file names; a file is read only if its name is a digest."""
        keys: set[str] = set()
        now = SystemClock().now_ms() / 1000

        def enter(path: Names) -> bool:
            return not (len(path) == 1 and path[0] in KINDS) and may_hold(folder_text(path), prefix, after)

        for home in scope_paths(scope):
            for path in walk(self._tree, home, enter, now):
                key = self._key(home, path)
                if key is not None and key.startswith(prefix) and (after is None or key > after):
                    keys.add(key)
        return sorted(keys)

    def _key(self, home: Names, path: Names) -> str | None:
        """Return the key of a file, or None if the file is foreign."""
        stem, dot, suffix = path[-1].rpartition(".")
        kind = KINDS_OF_FILE.get(dot + suffix)
        if kind is None:
            return None
        names = (*path[:-1], stem)
        if not digested(names):
            return key_of(names)
        file = _File((*home, *path[:-1]), path[-1], kind)
        with self._tree.folder(file.folder) as folder:
            data = None if folder is None else self._tree.read(folder, file.names)
        if data is None:
            return None
        key = self._parsed(file, data)[0]
        if key_path(key) != names:
            raise self._damaged(file, f"it holds {key!r}")
        return key


def _searched(text: str) -> str:
    """Return words with one space before each, so that a term matches only at the beginning of a word."""
    return " " + " ".join(text.split())


def _no_graph() -> NoReturn:
    raise Unsupported("Files hold no graph. Use a sqlite, memory or cozo store for edges.")


Place = tuple[tuple[Names, ...], str]
"""The folders that a scope may be in, and a key."""


def expired(tree: Tree, now: int) -> set[Place]:
    """Return the places of possibly expired entries; the caller checks each again under the write lock."""
    paths = walk(tree, (), lambda _: True, SystemClock().now_ms() / 1000)
    places = (_place(tree, path, now) for path in paths)
    return {place for place in places if place is not None}


def _place(tree: Tree, path: Names, now: int) -> Place | None:
    stem, dot, suffix = path[-1].rpartition(".")
    kind = KINDS_OF_FILE.get(dot + suffix)
    if kind is None:
        return None
    with tree.folder(path[:-1]) as folder:
        data = None if folder is None else tree.read(folder, path)
    try:
        key, entry = file_format.read(kind, data or b"")
    except file_format.Damaged:
        return None
    names = key_path(key)
    home = path[: -len(names)]
    ours = home and (*path[:-1], stem)[len(home) :] == names
    return (homes_of(home), key) if ours and not entry.live(now) else None
