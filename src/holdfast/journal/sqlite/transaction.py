"""The write path: one connection, one lock, one transaction per group, one of three outcomes.

Heads and keys are read after the write lock is taken, unless they are known from this connection's
last commit. Then everything is decided in Python by the rules that all backends share, and written with
one driver call if the same statements came before: each call releases the GIL, and waiting to get it
back from a busy thread costs more than the statement.

If everything is known and one statement writes it, that statement is the whole transaction. The lock is
then taken after the decision: whoever committed events in between took their numbers, the unique keys
refuse the statement, and the group is decided again under the lock.

A failed commit is never retried here. Its outcome is unknown for every member of its group: the
connection is dropped, and a caller finds out by asking again with the same key.

Callers meet in rounds, one of them commits for all, and every caller gets its own answer. Callers that
arrive during a commit join the next round. Whoever enters a round's lock first leads: it waits for the
commit before, commits the round in one transaction and settles every member. There is no extra thread
and nothing to stop at exit, and a lone caller pays nothing for it.

The lead is a lock, held by `with`. A leader that a signal interrupts, wherever it is, leaves both locks:
the next member leads if the commit had not begun, else it is told that its outcome is unknown.

By itself this settles into two halves that take turns: while one commits, the other waits. On a
slow disk the leader therefore waits briefly for the callers of the last round, at most a quarter
of the last commit's time, so that they share one commit instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import apsw
import msgspec

from holdfast.core.journal.chain import find_key_conflict, find_refusal, key_mismatch_error, new_head, place_part
from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import coalesce_changes
from holdfast.errors import HoldfastError, OutcomeUnknown, Refused, Unavailable
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.rows import artifact_row, event_row, head_from_row, read_append, stream_row, subject_digest
from holdfast.journal.sqlite.statements import bind_changes, queries
from holdfast.journal.text_index import INDEXED_TYPES
from holdfast.records.batches import AppendResult, Batch, BatchPart, Head, RowChange
from holdfast.records.batches import PartPlacement as PlacedPart
from holdfast.records.events.envelope import StoredEvent
from holdfast.sqlite.bundles import Statement, StatementBundles, StatementRuns
from holdfast.sqlite.connection import DRIVER_ERRORS, ROW_ERRORS, fetch_rows, translate_error
from holdfast.sqlite.pool import SqlitePool

GATHER_SHARE = 0.25
"""The share of the last commit's time for which a leader waits for more callers."""

TURNS_WITH_OTHERS = 32
"""Transactions that are not planned ahead after another process was seen to write: it will probably write again."""

MIN_GATHER_SECONDS = 0.001
"""The shortest commit, in seconds, for which waiting is worthwhile."""


UNWRITTEN = (*ROW_ERRORS, apsw.BusyError, apsw.FullError)
"""The errors after which a statement that is a transaction by itself has certainly written nothing."""


class GroupMember:
    """One caller's batch: settled once, with an answer or an error."""

    __slots__ = ("batch", "outcome", "withdrawn")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.outcome: AppendResult | HoldfastError | None = None
        self.withdrawn = False


class CommitRound(msgspec.Struct, eq=False):
    """The members of one commit. Each enters `lock` once: the first of them leads, the others find their answer."""

    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    members: list[GroupMember] = []
    size: int = 0
    begun: bool = False
    """Set when its commit begins: from then on nobody joins, and a member without an answer is in doubt."""
    wanted: int = 0
    enough: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Locked while a leader waits for `wanted` members; unlocked by the last of them."""


class GroupCommit:
    """Rounds of callers, committed one after the other. `commit` writes members and settles them; it may raise."""

    def __init__(self, commit: Callable[[Sequence[GroupMember]], None], *, members: int, size: int) -> None:
        self._commit = commit
        self._members = members
        self._size = size
        self._mutex = threading.Lock()
        self._leading = threading.Lock()
        self._open = CommitRound()
        self._company = 1
        self._took = 0.0

    def submit(self, batch: Batch) -> AppendResult:
        """Write a batch, in this thread's commit or in another caller's."""
        own = GroupMember(batch)
        try:
            joined = self._join(own)
            with joined.lock:
                if own.outcome is None and not joined.begun:
                    with self._leading:
                        self._wait_for_callers(joined)
                        members = self._take_members(joined)
                        began = time.monotonic()
                        self._commit(members)
                        self._took = time.monotonic() - began
                        arrived = 0 if self._open is joined else len(self._open.members)
                        self._company = len(members) + arrived
                if own.outcome is None:  # Whoever led was interrupted.
                    settle_members(joined.members, OutcomeUnknown)
        except BaseException:
            own.withdrawn = True  # Nothing is written later for a caller that has gone.
            raise
        if isinstance(own.outcome, HoldfastError):
            raise own.outcome
        assert own.outcome is not None, "a member was left unsettled"
        return own.outcome

    def _join(self, own: GroupMember) -> CommitRound:
        with self._mutex:
            joined, size = self._open, 0
            for part in own.batch.parts:
                for event in part.events:
                    size += len(event.facts) + len(event.content or b"")
            full = len(joined.members) >= self._members or joined.size + size > self._size
            if joined.begun or (full and joined.members):
                joined = self._open = CommitRound()
            joined.members.append(own)
            joined.size += size
            if joined.wanted and len(joined.members) >= joined.wanted:
                joined.wanted = 0
                joined.enough.release()
            return joined

    def _wait_for_callers(self, joined: CommitRound) -> None:
        """Wait for the callers of the last round, if the disk is slow and they have not arrived yet."""
        if self._took < MIN_GATHER_SECONDS:
            return
        with self._mutex:
            wanted = min(self._company, self._members)
            if len(joined.members) >= wanted:
                return
            joined.enough.acquire(blocking=False)
            joined.wanted = wanted
        joined.enough.acquire(timeout=self._took * GATHER_SHARE)

    def _take_members(self, joined: CommitRound) -> list[GroupMember]:
        with self._mutex:
            joined.wanted = 0
            joined.begun = True
            return [member for member in joined.members if not member.withdrawn]


def settle_members(members: Sequence[GroupMember], error: type[HoldfastError]) -> None:
    """Give `error` to every member that has no answer yet."""
    for member in members:
        if member.outcome is None:
            member.outcome = error()


class WriteAttempt(msgspec.Struct):
    """The progress of a transaction: what an error means depends on how far it came."""

    ahead: KnownHeads | None = None
    """The heads that the plan was made from, if one statement is the whole transaction."""
    committing: bool = False

    def is_unknown_after(self, error: BaseException) -> bool:
        """Return True if after this error the events may have been committed."""
        return self.committing and not isinstance(error, apsw.FullError if self.ahead is None else UNWRITTEN)


class SqliteWriter:
    """The writer of a journal, under this process's write lock; SQLite's lock excludes other processes."""

    def __init__(
        self, connections: SqlitePool, files: ArtifactFiles, announce: Callable[[], None], *, index: bool = True
    ) -> None:
        self._connections = connections
        self._index = index
        self._files = files
        self._announce = announce
        self._known: KnownHeads | None = None
        self._bundles: StatementBundles | None = None
        self._texts: dict[int, int] = {}
        self.behind: set[int] = set()
        """Tenants with so many texts of this process that are not indexed that a caller is to index them."""
        self._others_seen = 0

    def commit(self, members: Sequence[GroupMember]) -> None:
        """Write a group, settle every member of it and announce the commit."""
        try:
            self._connections.write(self._attempt, members)
        except HoldfastError as error:
            for member in members:
                if member.outcome is None:
                    member.outcome = error
        finally:
            self._announce()

    def _attempt(self, connection: apsw.Connection, members: Sequence[GroupMember], *, alone: bool = False) -> None:
        """Run one transaction; if the database itself refuses a row, run others, to find out whose it was."""
        attempt, refused = WriteAttempt(), False
        try:
            self._run(connection, members, attempt, alone=alone)
        except BaseException as error:
            unknown = attempt.is_unknown_after(error)
            self._connections.abandon_transaction(connection, error, committing=unknown)
            if not isinstance(error, (*DRIVER_ERRORS, HoldfastError, MemoryError)):
                settle_members(members, OutcomeUnknown if unknown else Unavailable)
                raise
            refused = not alone and not unknown and isinstance(translate_error(error), Refused)
            for member in members:
                if member.outcome is None and not refused:
                    member.outcome = translate_error(error, committing=unknown)
        if refused and attempt.ahead is not None:
            if not attempt.ahead.is_current(connection):
                self._others_seen = TURNS_WITH_OTHERS
            self._attempt(connection, members)  # What was known is forgotten: this time it is read under the lock.
        elif refused:
            for member in members:
                if member.outcome is None:
                    self._attempt(connection, [member], alone=True)

    def _note_texts(self, texts: dict[int, int]) -> None:
        """Count texts that are not indexed, until a tenant has enough of them for a batch."""
        for tenant, more in texts.items():
            count = more + self._texts.pop(tenant, 0)
            if count >= PENDING_TEXTS:
                self.behind.add(tenant)
            else:
                if len(self._texts) >= MAX_KNOWN:
                    self._texts.clear()
                self._texts[tenant] = count

    def forget_texts(self, tenant: int) -> None:
        """Count the texts of a tenant from none, once they are indexed."""
        self._texts.pop(tenant, None)

    def _run(
        self, connection: apsw.Connection, members: Sequence[GroupMember], attempt: WriteAttempt, *, alone: bool
    ) -> None:
        self._prepare_bundles(connection)
        plan = None if alone else self._plan_ahead(connection, members)
        if plan is None:
            plan, statement = self._plan(self._begin(connection, members), members, by_id=alone), None
        elif (statement := plan.statement) is not None:
            attempt.ahead = plan.known
        if statement is not None:
            attempt.committing = True
            connection.execute(*statement)
        elif plan.events:
            plan.write()
            attempt.committing = True
            connection.execute("COMMIT")
        else:
            connection.execute("ROLLBACK")
        if attempt.committing:
            plan.known.note_commit()
            self._known = plan.known
            if plan.texts and self._index:
                self._note_texts(plan.texts)
        self._connections.check_files(committed=attempt.committing)
        # Still part of the attempt: an interruption here leaves other members in doubt, not with a wrong answer.
        for member, answer in plan.answers:
            member.outcome = answer

    def _prepare_bundles(self, connection: apsw.Connection) -> None:
        if self._bundles is None or self._bundles.connection is not connection:
            self._bundles = StatementBundles(connection)
        if self._bundles.wanted is not None:
            self._bundles.prepare()

    def _plan_ahead(self, connection: apsw.Connection, members: Sequence[GroupMember]) -> SqlitePlan | None:
        """Return a plan made of what is known, before SQLite's write lock is taken; None if something must be read.

        What is known may be out of date. If one statement writes the plan, it is refused then: whoever committed events
        took their numbers or their keys. Else the lock is taken here, and a plan that may be out of date is given up.
        """
        known = self._known
        if self._others_seen:
            self._others_seen -= 1
            return None
        if known is None or not known.covers(connection, members):
            return None
        self._known = None
        try:
            plan = self._plan(known, members, ahead=True)
        except HoldfastError:
            return None  # A refusal counts only if it was decided under the lock.
        plan.statement = plan.find_statement()
        if plan.statement is None:
            connection.execute("BEGIN IMMEDIATE")
            if not known.is_current(connection):
                connection.execute("ROLLBACK")
                return None
        return plan

    def _plan(
        self, known: KnownHeads, members: Sequence[GroupMember], *, by_id: bool = False, ahead: bool = False
    ) -> SqlitePlan:
        """Return the plan of a group. A member that is refused has its outcome, or ends a plan that is made ahead."""
        plan = SqlitePlan(known, self._files, self._bundles)
        for member in members:
            try:
                plan.answers.append((member, plan.add(member.batch, by_id=by_id)))
            except HoldfastError as refusal:
                if ahead:
                    raise
                member.outcome = refusal
        return plan

    def _begin(self, connection: apsw.Connection, members: Sequence[GroupMember]) -> KnownHeads:
        """Take SQLite's write lock and return the heads that the members need."""
        known, self._known = self._known, None
        connection.execute("BEGIN IMMEDIATE")
        if known is None or not known.is_current(connection):
            known = KnownHeads(connection)
        known.read([member.batch for member in members])
        return known


PENDING_TEXTS = 256
"""Texts of a tenant after which an append has them indexed."""
MESSAGE_APPENDED = "message.appended"
_JSON = msgspec.json.Encoder()
MAX_KNOWN = 4096
"""The largest number of heads that are kept from one commit to the next."""


class KnownHeads:
    """The heads, tenants and subjects that one connection has read or written.

    They are true as long as nobody else commits, which SQLite tells without reading anything: its data version changes
    with every commit, of this connection or of any other. Only a transaction that was committed is remembered.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._version = -1
        self.secret = b""
        self.tenants: dict[str, int | None] = {}
        self.heads: dict[tuple[str, str], Head] = {}
        self.keys: dict[tuple[str, str, str], int] = {}
        self.subjects: dict[tuple[int, str], int] = {}
        self.next_seq = self.next_stream = 0

    def is_current(self, connection: apsw.Connection) -> bool:
        """Return True if nobody has committed since `note_commit`: for certain only within a transaction."""
        return connection is self.connection and connection.data_version() == self._version

    def covers(self, connection: apsw.Connection, members: Sequence[GroupMember]) -> bool:
        """Return True if their batches can be planned without reading, as far as this connection has seen.

        Their keys are taken to be new: the unique index of keys refuses a statement with one that is not.
        """
        if not self.is_current(connection):
            return False
        for member in members:
            batch = member.batch
            if batch.artifacts:  # Their files are looked for under the lock.
                return False
            for part in batch.parts:
                if (batch.tenant, part.stream) not in self.heads:
                    return False
        return True

    def note_commit(self) -> None:
        """Keep what is known for the next transaction."""
        self._version = self.connection.data_version()
        self.keys.clear()
        if len(self.heads) + len(self.subjects) > MAX_KNOWN:
            self.heads.clear()
            self.subjects.clear()
            self.tenants.clear()

    def read(self, batches: Sequence[Batch]) -> None:
        """Read the heads of these batches that are not known, and the events that their keys stand for."""
        wanted = [
            (batch.tenant, part.stream, part.key)
            for batch in batches
            for part in batch.parts
            if part.key is not None or (batch.tenant, part.stream) not in self.heads
        ]
        if wanted:
            self._read_heads(wanted)

    def _read_heads(self, wanted: Sequence[tuple[str, str, str | None]]) -> None:
        rows = fetch_rows(self.connection, queries()["wanted_heads"], (_JSON.encode(wanted).decode(),))
        for place, tenant, *row, keyed, last, streams, secret in rows:
            name, stream, key = wanted[place]
            self.tenants[name] = tenant
            if row[0] is not None:
                self.heads[name, stream] = head_from_row(stream, row)
            if keyed is not None and key is not None:
                self.keys[name, stream, key] = keyed
            self.next_seq, self.next_stream, self.secret = (last or 0) + 1, (streams or 0) + 1, secret


class SqlitePlan:
    """The writes of one transaction, built up member by member; what it changes becomes known."""

    def __init__(self, known: KnownHeads, files: ArtifactFiles, bundles: StatementBundles | None = None) -> None:
        self.known = known
        self.answers: list[tuple[GroupMember, AppendResult]] = []
        self._bundles = bundles or StatementBundles(known.connection)
        self._calls: list[StatementRuns] | None = None
        self.statement: Statement | None = None
        """The one statement that writes a plan that was made ahead, if there is one."""
        self._connection = known.connection
        self._files = files
        self._written: dict[tuple[str, str, str], list[StoredEvent]] = {}
        self._first: list[Statement] = []
        self.events: list[Statement] = []
        """The inserts of new events; without any there is nothing to write."""
        self._changes: list[Statement] = []
        self._dirty: dict[tuple[str, str], bool] = {}
        self.texts: dict[int, int] = {}
        """The number of new texts of each tenant, which the text index does not hold yet."""

    def add(self, batch: Batch, *, by_id: bool = False) -> AppendResult:
        """Add a batch, or raise and leave the plan as it was. `by_id` also looks for its event ids."""
        earlier = self._find_earlier(batch, by_id=by_id)
        if earlier is not None:
            return earlier
        try:
            heads = self._admit(batch)
        except HoldfastError:
            # This very batch may have advanced the stream, and is sent again after an unknown outcome.
            earlier = self._find_earlier(batch, by_id=True)
            if earlier is None:
                raise
            return earlier
        if batch.artifacts:
            self._check_files(batch)
        placed: list[PlacedPart] = []
        written: list[tuple[BatchPart, Head, list[StoredEvent]]] = []
        statements: list[Statement] = []
        seq = self.known.next_seq
        tenant = self.known.tenants[batch.tenant] or self._new_tenant(batch.tenant)
        for part in batch.parts:
            head = heads[part.stream]
            events, after = place_part(batch, part, head, seq, lambda name: self._pseudonym(tenant, name))
            seq += len(events)
            heads[part.stream] = after
            written.append((part, after, events))
            placed.append(PlacedPart(stream=part.stream, first=events[0].version, last=events[-1].version, seq=seq - 1))
            statements += _projection_statements(tenant, head.id, part, events)
        # Nothing below can fail: the plan changes as a whole.
        self._changes += statements
        if batch.artifacts:
            put = queries()["put_artifact"]
            self._first += [(put, artifact_row(artifact, tenant)) for artifact in batch.artifacts]
        for part, head, events in written:
            self._note_part(batch.tenant, tenant, part, head, events)
        self.known.next_seq = seq
        return AppendResult(parts=tuple(placed))

    def _admit(self, batch: Batch) -> dict[str, Head]:
        heads: dict[str, Head] = {}
        fresh = self.known.next_stream
        for part in batch.parts:
            head = self.known.heads.get((batch.tenant, part.stream))
            if head is None:
                head = new_head(batch.tenant, part.stream, fresh)
                fresh += 1
            problem = find_refusal(part, head)
            if problem is not None:
                raise problem
            heads[part.stream] = head
        return heads

    def _check_files(self, batch: Batch) -> None:
        """Refuse a missing file: placed before the lock was taken, it may have been erased or collected since."""
        for artifact in batch.artifacts:
            if artifact.body is None and not self._files.path(batch.tenant, artifact.name).exists():
                raise Unavailable("An artifact's file was removed before it was referred to. Try again.")

    def _note_part(self, tenant_name: str, tenant: int, part: BatchPart, head: Head, events: list[StoredEvent]) -> None:
        place = (tenant_name, part.stream)
        self._dirty.setdefault(place, place not in self.known.heads)
        self.known.heads[place] = head
        self.known.next_stream = max(self.known.next_stream, head.id + 1)
        insert = queries()["insert_event"]
        for event in events:
            self.events.append((insert, event_row(event, tenant, head.id)))
            if event.type in INDEXED_TYPES:
                self.texts[tenant] = self.texts.get(tenant, 0) + 1
        if part.key is not None:
            self._written[*place, part.key] = events

    def _find_earlier(self, batch: Batch, *, by_id: bool) -> AppendResult | None:
        found: list[list[StoredEvent]] = []
        for part in batch.parts:
            known = part.key is not None or by_id
            found.append(self._find_stored(batch.tenant, part, by_id=by_id) if known else [])
        if not any(found):
            return None
        # If one part is known, look for the others by their event ids as well.
        pairs = zip(found, batch.parts, strict=True)
        found = [stored or self._find_stored(batch.tenant, part, by_id=True) for stored, part in pairs]
        for part, stored in zip(batch.parts, found, strict=True):
            problem = find_key_conflict(part, stored) if stored else key_mismatch_error(part)
            if problem is not None:
                raise problem
        parts = (PlacedPart(stream=s[0].stream, first=s[0].version, last=s[-1].version, seq=s[-1].seq) for s in found)
        return AppendResult(parts=tuple(parts), repeated=True)

    def _find_stored(self, tenant: str, part: BatchPart, *, by_id: bool) -> list[StoredEvent]:
        if part.key is not None:
            pending = self._written.get((tenant, part.stream, part.key))
            if pending is not None:
                return pending
            version = self.known.keys.get((tenant, part.stream, part.key))
        elif by_id:
            version = self._find_version(tenant, part)
        else:
            return []
        if version is None:
            return []
        head = self.known.heads[tenant, part.stream]
        return read_append(self._connection, (tenant, self.known.tenants[tenant]), (part.stream, head.id), version)

    def _find_version(self, tenant: str, part: BatchPart) -> int | None:
        head = self.known.heads.get((tenant, part.stream))
        if head is None:
            return None
        values = (self.known.tenants[tenant], part.events[0].id)
        row = self._connection.execute(queries()["event_by_id"], values).fetchone()
        return row[1] if row is not None and row[0] == head.id else None

    def _new_tenant(self, name: str) -> int:
        ids = [id for _, id in fetch_rows(self._connection, queries()["tenant_ids"])]
        fresh: int = max([0, *ids, *(id for id in self.known.tenants.values() if id is not None)]) + 1
        self.known.tenants[name] = fresh
        self._first.append((queries()["insert_tenant"], (fresh, name)))
        return fresh

    def _pseudonym(self, tenant: int, name: str) -> int:
        known = self.known.subjects.get((tenant, name))
        if known is None:
            names = _JSON.encode([name]).decode()
            ((_, known),) = fetch_rows(self._connection, queries()["find_subjects"], (names, tenant))
            if known is None:
                known = self._new_subject(tenant, name)
            self.known.subjects[tenant, name] = known
        return known

    def _new_subject(self, tenant: int, name: str) -> int:
        ((fresh,),) = fetch_rows(self._connection, queries()["next_subject"], (tenant,))
        fresh = max([fresh, *(id + 1 for (owner, _), id in self.known.subjects.items() if owner == tenant)])
        digest = subject_digest(self.known.secret, name)
        self._first.append((queries()["insert_subject"], (tenant, fresh, name, digest)))
        return int(fresh)

    def find_statement(self) -> Statement | None:
        """Return the one statement that writes everything, if there is one."""
        calls = self._group_calls()
        if self._first or len(calls) != 1 or len(calls[0][1]) != 1:
            return None
        ((sql, (values,)),) = calls
        return sql, values

    def write(self) -> None:
        """Write everything but the commit."""
        for sql, values in self._first:
            self._connection.execute(sql, values)
        for sql, runs in self._group_calls():
            self._connection.executemany(sql, runs)

    def _group_calls(self) -> list[StatementRuns]:
        if self._calls is None:
            self._calls = self._bundles.group(self._list_statements())
        return self._calls

    def _list_statements(self) -> list[Statement]:
        fresh, moved = [], []
        for (tenant, name), is_new in self._dirty.items():
            head = self.known.heads[tenant, name]
            if is_new:
                fresh.append((queries()["insert_stream"], stream_row(self.known.tenants[tenant], head)))
            else:
                owner = (head.epoch, head.holder, head.lease_ms, head.closed)
                place = (self.known.tenants[tenant], head.id)
                moved.append((queries()["update_stream"], (head.version, head.hash, *owner, *place)))
        return [*fresh, *self.events, *self._changes, *moved]


def _projection_statements(tenant: int, stream: int, part: BatchPart, events: Sequence[StoredEvent]) -> list[Statement]:
    changes: list[RowChange] = []
    messages = 0
    for event, sealed in zip(events, part.events, strict=True):
        changes += project_event(event.type, sealed.facts_record, event.version, event.at)
        messages += event.type == MESSAGE_APPENDED
    if messages == len(events) > 1:
        # Many messages at once: one change for each row, so that their thread is updated once.
        changes = coalesce_changes(changes)
    return bind_changes(changes, tenant, stream)
