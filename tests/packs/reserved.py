"""Writing under keys that holdfast keeps for itself, as its own flows do, and which no caller can."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from holdfast.core.compaction.summary import PREFIX
from holdfast.core.entries import Options
from holdfast.flow.state import write as state_write
from holdfast.flow.state.journal_store import unreserved


def write(hf: Holdfast, scope: str, key: str, value: Any, **options: Any) -> int:
    """An entry with the trust of this client."""
    wanted = state_write.Write(value=value, options=Options(**options))
    return state_write.write(unreserved(hf._ports, hf._acting), scope, key, wanted)


def remember(hf: Holdfast, scope: str, name: str, value: Any) -> int:
    """An entry where compaction leaves what it took away."""
    return write(hf, scope, PREFIX + name, value)
