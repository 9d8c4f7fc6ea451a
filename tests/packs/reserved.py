"""Writing under keys that holdfast keeps for itself, as its own flows do, and which no caller can."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.core.entries import EntryOptions
from holdfast.flow.state import write as state_write
from holdfast.flow.state.journal_store import internal_storage


def write(hf: Holdfast, scope: str, key: str, value: Any, **options: Any) -> int:
    """An entry with the trust of this client."""
    wanted = state_write.EntryWrite(value=value, options=EntryOptions(**options))
    return state_write.write_entry(internal_storage(hf.env), scope, key, wanted)


def remember(hf: Holdfast, scope: str, name: str, value: Any) -> int:
    """An entry where compaction leaves what it took away."""
    return write(hf, scope, PASSAGE_PREFIX + name, value)
