"""A writer for tests: turns drafts into committed events, with every part of an append under control."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from holdfast.connect import assemble_env
from holdfast.flow.journal.append import StreamWrite, append_events, seal_batch
from holdfast.ports import Clock, Env, Ids
from holdfast.ports.journal import Journal
from holdfast.records.batches import AppendResult, Artifact, Batch
from holdfast.records.events.envelope import AppContent, AppFacts, Draft
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds

_SEEDS = itertools.count()


def make_note(text: str = "hello", *, subject: str | None = None, artifacts: Sequence[str] = (), **facts: Any) -> Draft:
    """Make a draft of a small application event."""
    return Draft(
        type="app.noted",
        facts=AppFacts(data=facts, artifacts=tuple(artifacts)),
        content=AppContent(data={"text": text}),
        subject=subject,
    )


class Writer:
    """A writer that appends to a journal as one tenant and user."""

    def __init__(
        self,
        journal: Journal,
        *,
        tenant: str = "default",
        user: str | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        settings: Settings | None = None,
    ) -> None:
        clock = clock or FrozenClock()
        # Like two processes, two writers must never mint the same ids.
        ids = ids or SeededIds(clock, seed=next(_SEEDS))
        self.env: Env = assemble_env(journal, settings or Settings(), clock, ids, tenant=tenant, user=user)

    def build_batch(
        self,
        stream: str,
        *drafts: Draft,
        expected: int | None = None,
        key: str | None = None,
        epoch: int = 0,
        artifacts: Sequence[Artifact] = (),
    ) -> Batch:
        """Build a batch of one part in canonical bytes; it can be appended any number of times."""
        part = StreamWrite(stream=stream, events=drafts, expected=expected, key=key, epoch=epoch)
        return seal_batch(self.env, [part], artifacts)

    def append(self, stream: str, *drafts: Draft, **how: Any) -> AppendResult:
        """Append one part through the port."""
        return self.env.journal.append(self.build_batch(stream, *drafts, **how))

    def write(self, *parts: StreamWrite) -> AppendResult:
        """Append several parts in one batch, as a flow does."""
        return append_events(self.env, parts)
