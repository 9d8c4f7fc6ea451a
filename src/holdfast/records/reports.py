"""Queries and reports of a journal besides appends."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Progress = Callable[[int, int], None]
"""A callback that receives the amount done and the total."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One page of events: of a stream in order of version, or of a tenant in order of seq.

    `after` and `until` are exclusive and inclusive bounds of that order; newest first if `backwards`.
    """

    tenant: str
    stream: str | None = None
    after: int = 0
    until: int | None = None
    types: tuple[str, ...] = ()
    backwards: bool = False
    limit: int = 256


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A pseudonym and, until it is erased, the name it stands for."""

    id: int
    name: str | None


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an erasure."""

    subject: int
    events: int
    artifacts: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, its place, and its meaning."""

    kind: str
    where: str
    problem: str


class VerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify`: the amounts checked, and the findings."""

    events: int
    streams: int
    rows: int
    artifacts: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings
