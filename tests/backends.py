"""What tests on several backends share."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.journal.sqlite import rebuild

IN_MEMORY = pytest.mark.parametrize("hf", ["memory"], indirect=True)
"""For what is the same on every backend: nothing comes to be written."""


def rebuild_alone(journal: Any) -> int:
    """Rebuild without pauses: each is as long as the work before it, so that others get the write lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild, "MAX_BUSY_STEP", 0)
        found: int = journal.rebuild()
        return found


def check_rebuilt(hf: holdfast.Holdfast) -> None:
    """The journal verifies, and so it does when it is rebuilt."""
    assert hf.journal.verify().findings == ()
    if hf.journal.position():
        assert rebuild_alone(hf.journal) == hf.journal.position()
        assert hf.journal.verify().findings == ()
