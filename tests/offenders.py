"""Report everything that breaks a rule at once: a test that goes over many things names each offender."""

from __future__ import annotations

from collections.abc import Iterable


def assert_none(offenders: Iterable[object], advice: str) -> None:
    """Fail if there are offenders, with the advice and one line for each of them."""
    lines = [str(offender) for offender in offenders]
    assert not lines, "\n".join((advice, *lines))
