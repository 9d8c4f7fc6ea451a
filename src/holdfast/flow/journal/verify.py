"""Verify a journal: everything stored is intact, and everything derived follows from it.

Goes stream by stream, so that memory follows the largest stream and not the journal. Checks every chain from its
first event to its head, dense versions, rows against projections of the events, states against folds, artifacts
against their names, and the backend's own checks. On request, also rebuilds every journaled pack.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from holdfast.core.journal.chain import genesis_hash, link_hash
from holdfast.core.journal.codec import decode_event, is_intact
from holdfast.core.journal.fold import fold_event
from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import ShadowRows
from holdfast.core.journal.tables import PROJECTIONS
from holdfast.errors import HoldfastError
from holdfast.flow.journal.artifacts import artifact_name
from holdfast.flow.journal.read import advance_cursor, iterate_stored
from holdfast.ports import Env
from holdfast.ports.capabilities import ARTIFACTS, MAINTENANCE, require
from holdfast.records.batches import Head, HeadQuery, Row
from holdfast.records.events.envelope import Event
from holdfast.records.frames import StreamState
from holdfast.records.reports import EventQuery, Finding, Progress, VerificationReport

PAGE = 1_000

RebuildPack = Callable[[Env, Event], object]
"""A function that rebuilds a journaled pack; it raises if the pack cannot be shown again as it was."""


def verify(
    env: Env, progress: Progress | None = None, *, rebuild_pack: RebuildPack | None = None
) -> VerificationReport:
    """Check everything once; with `rebuild_pack`, also that every journaled pack can be rebuilt as it was."""
    run = _Verification(env, progress, rebuild_pack)
    with env.journal.snapshot():
        run.run()
    return VerificationReport(
        events=run.events, streams=run.streams, rows=run.rows, artifacts=run.artifacts, findings=tuple(run.findings)
    )


class _Verification:
    def __init__(self, env: Env, progress: Progress | None, rebuild_pack: RebuildPack | None) -> None:
        self._env, self._progress, self._rebuild_pack = env, progress, rebuild_pack
        self.findings: list[Finding] = []
        self.events = self.streams = self.rows = self.artifacts = 0

    def run(self) -> None:
        try:
            self.findings.extend(require(self._env.journal, MAINTENANCE).check())
            self._total = require(self._env.journal, MAINTENANCE).count()
            tables = {table.name: _ProjectionCursor(self._env, table.name) for table in PROJECTIONS}
            for tenant in self._env.journal.tenants():
                for head in self._read_heads(tenant):
                    self._verify_stream(tenant, head, tables)
            for name, table in tables.items():
                for tenant, stream, _ in table.take_rest():
                    self._report("rows", f"{tenant} {stream} {name}", "a row belongs to a stream that does not exist")
            self._verify_artifacts()
            if self.events != self._total and not self.findings:
                self._report("events", "journal", f"{self._total} events are stored, {self.events} belong to a stream")
        except Exception as error:  # noqa: BLE001  damage may break anything, and a check that dies has not checked
            self._report("unreadable", "journal", _describe_error(error))

    def _read_heads(self, tenant: str) -> Iterator[Head]:
        after = ""
        while heads := self._env.journal.heads(tenant, HeadQuery(after=after, limit=PAGE)):
            yield from heads
            after = advance_cursor(after, heads[-1].stream)

    def _verify_stream(self, tenant: str, head: Head, tables: dict[str, _ProjectionCursor]) -> None:
        self.streams += 1
        journal = self._env.journal
        where = f"{tenant} {head.stream}"
        shadow = ShadowRows()
        state = StreamState()
        previous, version = genesis_hash(tenant, head.stream), 0
        try:
            for stored in iterate_stored(journal, EventQuery(tenant=tenant, stream=head.stream, limit=PAGE)):
                version += 1
                if stored.version != version:
                    self._report("versions", where, f"version {version} is missing")
                    version = stored.version
                previous = link_hash(previous, stored)
                intact = is_intact(stored)
                if not intact or not hmac.compare_digest(previous, stored.hash):
                    self._report("chain", f"{where} version {version}", "the event is not what was written")
                    previous = stored.hash
                # Rows and states need no content: damage to it hides no other.
                event = decode_event(stored if intact else replace(stored, content=None, salt=None))
                state = fold_event(state, event)
                for change in project_event(event.type, event.facts, event.version, event.at):
                    shadow.apply(change)
                if self._rebuild_pack is not None and event.type == "context.packed":
                    self._verify_pack(self._rebuild_pack, tenant, event)
                self.events += 1
                if self._progress is not None and self.events % PAGE == 0:
                    self._progress(self.events, self._total)
        except Exception as error:  # noqa: BLE001
            self._report("unreadable", f"{where} after version {version}", _describe_error(error))
        found = (version, previous, state.epoch, state.holder, state.lease_ms, state.closed)
        if (head.version, head.hash, head.epoch, head.holder, head.lease_ms, head.closed) != found:
            self._report("head", where, "the stream's end is not that of its last event")
        self._compare_rows(tenant, head.stream, shadow, tables)
        self._verify_state(tenant, head.stream, state)

    def _verify_pack(self, rebuild_pack: RebuildPack, tenant: str, event: Event) -> None:
        """Report a pack that names something missing, or that differs although nothing was erased."""
        try:
            rebuild_pack(replace(self._env, tenant=tenant, user=None), event)
        except HoldfastError as error:
            self._report("packs", f"{tenant} {event.stream} version {event.version}", str(error))

    def _verify_state(self, tenant: str, stream: str, state: StreamState) -> None:
        try:
            same = self._env.journal.load(tenant, stream) == state
        except HoldfastError as error:
            self._report("state", f"{tenant} {stream}", str(error))
            return
        if not same:
            self._report("state", f"{tenant} {stream}", "the rows of its live frames do not give what its events give")

    def _compare_rows(self, tenant: str, stream: str, shadow: ShadowRows, tables: dict[str, _ProjectionCursor]) -> None:
        for table in PROJECTIONS:
            wanted = shadow.rows(table.name)
            found = tables[table.name].take(tenant, stream)
            self.rows += len(found)
            keyed = {tuple(row[name] for name in table.key): row for row in found}
            for key in wanted.keys() | keyed.keys():
                if wanted.get(key) != keyed.get(key):
                    self._report(
                        "rows", f"{tenant} {stream} {table.name}", _describe_difference(wanted.get(key), keyed.get(key))
                    )

    def _verify_artifacts(self) -> None:
        secret = self._env.journal.secret
        for tenant, artifact in require(self._env.journal, ARTIFACTS).artifacts():
            self.artifacts += 1
            where = f"{tenant} artifact {artifact.name.hex()}"
            if artifact.erased:
                if artifact.body is not None:
                    self._report("artifacts", where, "is marked erased and still has a body")
            elif artifact.body is None or artifact_name(secret, tenant, artifact.body) != artifact.name:
                self._report("artifacts", where, "is not what was written")
            elif len(artifact.body) != artifact.size:
                self._report("artifacts", where, "does not have the size that was noted")

    def _report(self, kind: str, where: str, problem: str) -> None:
        self.findings.append(Finding(kind=kind, where=where, problem=problem))


class _ProjectionCursor:
    """A projection's rows, taken stream by stream in the order in which streams are visited."""

    def __init__(self, env: Env, name: str) -> None:
        self._rows = require(env.journal, MAINTENANCE).rows(name)
        self._next: tuple[str, str, Row] | None = next(self._rows, None)

    def take(self, tenant: str, stream: str) -> list[Row]:
        found: list[Row] = []
        while self._next is not None and self._next[:2] == (tenant, stream):
            found.append(self._next[2])
            self._next = next(self._rows, None)
        return found

    def take_rest(self) -> Iterator[tuple[str, str, Row]]:
        while self._next is not None:
            yield self._next
            self._next = next(self._rows, None)


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"cannot be read ({error!r})"


def _describe_difference(wanted: Row | None, found: Row | None) -> str:
    if wanted is None:
        return "a row follows from no event"
    if found is None:
        return "a row is missing"
    columns = [name for name in wanted if wanted[name] != found.get(name)]
    return f"{', '.join(columns)} do not follow from the events"
