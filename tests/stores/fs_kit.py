"""What tests of files share: entries, and looking into the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.records.entries import EntryPageQuery, StoredEntry
from holdfast.store.fs.store import FsStore


def entry(value: object, **fields: Any) -> StoredEntry:
    """A value as the layers above would hand it over."""
    return StoredEntry(value=msgspec.json.encode(value, order="sorted"), **{"written_at": 1, **fields})


def listed(store: FsStore, scope: str, **page: Any) -> list[str]:
    """All keys of a scope."""
    return [key for key, _ in store.page(scope, EntryPageQuery(**{"now": 0, "limit": 10_000, **page}))]


def files(root: Path) -> list[str]:
    """Every file below a folder but the lock."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock")
