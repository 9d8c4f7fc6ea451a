"""The store in files: folders mirror scopes, one file is one entry, and people can read and copy both.

    session/s1/user_preference.json
    session/s1/history/turn-1.json

A file that somebody else put there, say a note or a tree of plain JSON, is an entry as well, until it is written.
Any number of threads and processes of one machine may use a folder. Reading takes no lock, since a file is
replaced whole. Folders are private, and no symbolic link in them is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from holdfast.core.search.rank import match_entries, spaced_words
from holdfast.errors import Corrupt, InvalidValue, OutcomeUnknown, Unsupported
from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.records.scope import SCOPE_KINDS
from holdfast.store.fs import format as file_format
from holdfast.store.fs.files import (
    FileTree,
    FolderLock,
    FolderWriter,
    Names,
    make_private_folder,
    may_hold_keys,
    translate_os_errors,
    walk_files,
)
from holdfast.system import SystemClock

Format = Literal["json", "markdown"]
_NO_GRAPH = "Files hold no graph. Use a sqlite, memory or cozo store for edges."


class _EntryFile(NamedTuple):
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
        if format not in file_format.SUFFIXES:
            raise InvalidValue(f"format must be one of {', '.join(file_format.SUFFIXES)}, not {format!r}.")
        if os.open not in os.supports_dir_fd:
            raise Unsupported("This system cannot open files safely below a folder. Use a sqlite store here.")
        self._format = format
        self._search = search
        # Resolved once: a store stays where it was opened, whatever the current folder is later.
        self.root = Path(root).resolve()
        make_private_folder(self.root)
        self._tree = FileTree(self.root)
        self._turns = FolderLock(self._tree)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"durable", "shared", "text"} if self._search else {"durable", "shared"})

    # reading

    def get(self, scope: str, key: str) -> StoredEntry | None:
        with translate_os_errors(self.root):
            return self._read_newest(file_format.scope_paths(scope), key)[0]

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        with translate_os_errors(self.root):
            found: list[tuple[str, StoredEntry]] = []
            for key in self._keys(scope, page.prefix, page.after):
                entry = self._read_newest(file_format.scope_paths(scope), key)[0]
                # Entries deleted meanwhile are skipped.
                if entry is None or not entry.is_live(page.now):
                    continue
                if page.lifetime is None or entry.lifetime == page.lifetime:
                    found.append((key, entry))
                if len(found) == page.limit:
                    break
            return found

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return live entries scored by the number of terms found, also as prefixes of words; no other ranking."""
        if not self._search:
            return []
        with translate_os_errors(self.root):
            paths = file_format.scope_paths(scope)
            entries = ((key, self._read_newest(paths, key)[0]) for key in self._keys(scope, "", None))
            return match_entries(((key, one, spaced_words(one)) for key, one in entries if one is not None), wanted)

    # writing

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        def write(turn: FolderWriter) -> int | None:
            known, files = self._read_newest(file_format.scope_paths(scope), key)
            previous = 0 if known is None else known.version
            if expected is not None and expected != previous:
                return None
            version = turn.next_version(previous)
            body = file_format.encode_entry(self._format, key, replace(entry, version=version))
            *folders, name = file_format.key_path(key)
            path = (*file_format.scope_paths(scope)[0], *folders)
            place = _EntryFile(path, name + file_format.SUFFIXES[self._format], self._format)
            with turn.record_change(place.folder), self._tree.folder(place.folder, make=True) as folder:
                assert folder is not None
                self._tree.write(folder, place.name, body)
            try:
                # Old files in the other format, or in the former `agent` folder, may go: the new one is on disk.
                self._remove_files(turn, [file for file in files if file != place])
            except (OSError, OutcomeUnknown):
                pass  # An older file is ignored. The next write tries to remove it again.
            return version

        return self._turns.write(write)

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        def remove(turn: FolderWriter) -> bool | None:
            if expected is None:
                # Without reading, so that a damaged entry can be deleted.
                files = [
                    file
                    for file, folder in self._files(file_format.scope_paths(scope), key)
                    if self._tree.has_file(folder, file.names)
                ]
            else:
                known, files = self._read_newest(file_format.scope_paths(scope), key)
                if expected != (0 if known is None else known.version):
                    return None
            self._remove_files(turn, files)
            return bool(files)

        return self._turns.write(remove)

    def purge(self, now: int) -> int:
        """Read every file and delete expired entries, each under its own lock. Damaged files are left."""
        with translate_os_errors(self.root):
            paths = walk_files(self._tree, (), lambda _: True, SystemClock().now_ms() / 1000)
            # Each is checked again under the write lock.
            over = sorted({place for path in paths if (place := self._expiry_place(path, now)) is not None})
        return sum(self._purge_entry(homes, key, now) for homes, key in over)

    def _purge_entry(self, homes: tuple[Names, ...], key: str, now: int) -> bool:
        def purge(turn: FolderWriter) -> bool:
            try:
                known, files = self._read_newest(homes, key)
            except Corrupt:
                return False
            over = known is not None and not known.is_live(now)
            self._remove_files(turn, files if over else [])
            return over

        return self._turns.write(purge)

    def _remove_files(self, turn: FolderWriter, files: list[_EntryFile]) -> None:
        for file in files:
            with turn.record_change(file.folder):
                with self._tree.folder(file.folder) as folder:
                    if folder is not None:
                        self._tree.unlink(folder, file.name)
                self._tree.remove_empty(file.folder)

    # the graph, which files do not have

    def link(self, edge: Edge) -> None:
        raise Unsupported(_NO_GRAPH)

    def unlink(self, edge: Edge) -> bool:
        raise Unsupported(_NO_GRAPH)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        raise Unsupported(_NO_GRAPH)

    def close(self) -> None:
        self._tree.close()

    # where things are

    def _files(self, homes: tuple[Names, ...], key: str) -> Iterator[tuple[_EntryFile, int]]:
        """Yield every file that may hold an entry, with its open folder."""
        *folders, name = file_format.key_path(key)
        for home in homes:
            path = (*home, *folders)
            with self._tree.folder(path) as folder:
                if folder is not None:
                    yield from (
                        (_EntryFile(path, name + suffix, kind), folder) for kind, suffix in file_format.SUFFIXES.items()
                    )

    def _read_newest(self, homes: tuple[Names, ...], key: str) -> tuple[StoredEntry | None, list[_EntryFile]]:
        """Return an entry and its files. If a killed writer left several, the newest counts."""
        found = []
        for file, folder in self._files(homes, key):
            data = self._tree.read(folder, file.names)
            if data is not None:
                inside, entry = self._parse_file(file, data, folder, key)
                if inside != key:
                    raise self._damage_error(file, f"it holds {inside!r}")
                found.append((entry, file))
        # Oldest first: they are removed in this order, so that an old value cannot come back.
        found.sort(key=lambda each: each[0].version)
        return (found[-1][0] if found else None), [file for _, file in found]

    def _parse_file(
        self, file: _EntryFile, data: bytes, folder: int | None = None, key: str = ""
    ) -> tuple[str, StoredEntry]:
        """Return the key and the entry of a file; given its folder and the key of its path, also of a plain file."""
        try:
            if folder is not None and file_format.is_plain(file.kind, data):
                changed_us = os.stat(file.name, dir_fd=folder, follow_symlinks=False).st_mtime_ns // 1000
                return key, file_format.decode_plain(file.kind, data, changed_us)
            return file_format.decode_entry(file.kind, data)
        except file_format.DamagedFile as error:
            raise self._damage_error(file, str(error)) from None

    def _damage_error(self, file: _EntryFile, why: str) -> Corrupt:
        path = self._tree.path(file.names)
        return Corrupt(f"{path} is damaged: {why}. Restore it from a backup, or delete the entry.")

    def _keys(self, scope: str, prefix: str, after: str | None) -> list[str]:
        """Return keys of a scope in order, from file names; a file is read only if its name is a digest."""
        keys: set[str] = set()
        now = SystemClock().now_ms() / 1000

        def enter(path: Names) -> bool:
            return not (len(path) == 1 and path[0] in SCOPE_KINDS) and may_hold_keys(
                file_format.folder_prefix(path), prefix, after
            )

        for home in file_format.scope_paths(scope):
            for path in walk_files(self._tree, home, enter, now):
                key = self._key(home, path)
                if key is not None and key.startswith(prefix) and (after is None or key > after):
                    keys.add(key)
        return sorted(keys)

    def _key(self, home: Names, path: Names) -> str | None:
        """Return the key of a file, or None if the file is foreign."""
        stem, dot, suffix = path[-1].rpartition(".")
        kind = file_format.FILE_KINDS.get(dot + suffix)
        if kind is None:
            return None
        names = (*path[:-1], stem)
        if not file_format.is_digest(names):
            return file_format.key_from_path(names)
        file = _EntryFile((*home, *path[:-1]), path[-1], kind)
        with self._tree.folder(file.folder) as folder:
            data = None if folder is None else self._tree.read(folder, file.names)
        if data is None:
            return None
        key = self._parse_file(file, data)[0]
        if file_format.key_path(key) != names:
            raise self._damage_error(file, f"it holds {key!r}")
        return key

    def _expiry_place(self, path: Names, now: int) -> tuple[tuple[Names, ...], str] | None:
        """Return the folders that an expired entry may be in, and its key; None for any other file."""
        stem, dot, suffix = path[-1].rpartition(".")
        kind = file_format.FILE_KINDS.get(dot + suffix)
        if kind is None:
            return None
        with self._tree.folder(path[:-1]) as folder:
            data = None if folder is None else self._tree.read(folder, path)
        try:
            key, entry = file_format.decode_entry(kind, data or b"")
        except file_format.DamagedFile:
            return None
        names = file_format.key_path(key)
        home = path[: -len(names)]
        ours = home and (*path[:-1], stem)[len(home) :] == names
        return (file_format.equivalent_homes(home), key) if ours and not entry.is_live(now) else None
