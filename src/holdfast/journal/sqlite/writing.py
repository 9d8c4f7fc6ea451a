"""The write path: one connection, one lock, one transaction per group, one of three outcomes.

Nothing here retries a failed commit. A failed commit is unknown for everybody in its
group: the connection is dropped, and whoever asks again with the same key finds out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apsw

from holdfast.errors import HoldfastError, OutcomeUnknown, Refused, Unavailable
from holdfast.journal.grouping import Member, settle
from holdfast.journal.sqlite.artifacts import ArtifactFiles
from holdfast.journal.sqlite.connection import translate
from holdfast.journal.sqlite.connections import Connections
from holdfast.journal.sqlite.plan import Plan
from holdfast.records.batches import Appended


class Writing:
    """Holds the write lock of this process; other processes are held off by SQLite's."""

    def __init__(self, connections: Connections, files: ArtifactFiles, *, index: bool = True) -> None:
        self._connections = connections
        self._index = index
        self._files = files
        self._lock = threading.Lock()
        connections.after_fork.append(self._renew_lock)

    def commit(self, members: Sequence[Member]) -> None:
        """Write a group and settle every member of it."""
        with self._lock:
            try:
                with self._connections.writing() as connection:
                    if not self._attempt(connection, members):
                        # A row was refused by the database itself: find out whose it was.
                        for member in members:
                            if not member.settled:
                                self._attempt(connection, [member], alone=True)
            except HoldfastError as error:
                for member in members:
                    if not member.settled:
                        member.error = error

    def _attempt(self, connection: apsw.Connection, members: Sequence[Member], *, alone: bool = False) -> bool:
        """One transaction. False asks for another try, member by member."""
        committing = False
        try:
            plan = Plan(connection, self._files, [member.batch for member in members], index=self._index)
            answers = [(member, self._add(plan, member, by_id=alone)) for member in members]
            if plan.empty:
                connection.execute("ROLLBACK")
            else:
                plan.write()
                committing = True
                connection.execute("COMMIT")
            # Still inside: who is interrupted here leaves the others in doubt, not in the wrong.
            for member, answer in answers:
                member.answer = answer
        except BaseException as error:
            committing = committing and not isinstance(error, apsw.FullError)
            self._abandon(connection, error, committing=committing)
            if not isinstance(error, apsw.Error | HoldfastError | MemoryError | UnicodeDecodeError):
                settle(members, OutcomeUnknown if committing else Unavailable)
                raise
            if not alone and not committing and isinstance(translate(error), Refused):
                return False
            for member in members:
                if not member.settled:
                    member.error = translate(error, committing=committing)
        return True

    def _add(self, plan: Plan, member: Member, *, by_id: bool) -> Appended | None:
        try:
            return plan.add(member.batch, by_id=by_id)
        except HoldfastError as error:
            member.error = error
            return None

    def _abandon(self, connection: apsw.Connection, error: BaseException, *, committing: bool) -> None:
        if not committing:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, apsw.ConstraintError | apsw.BusyError | HoldfastError):
                    return
            except apsw.Error:
                pass  # The connection goes, and its transaction with it.
        self._connections.drop_writer(suspect=committing)

    @contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """The write lock for maintenance: committed at the end, rolled back on any error."""
        with self._lock, self._connections.writing() as connection:
            committing = False
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                committing = True
                connection.execute("COMMIT")
            except BaseException as error:
                committing = committing and not isinstance(error, apsw.FullError)
                self._abandon(connection, error, committing=committing)
                if isinstance(error, apsw.Error | UnicodeDecodeError):
                    raise translate(error, committing=committing) from error
                raise

    @contextmanager
    def exclusively(self) -> Iterator[apsw.Connection]:
        """The write connection outside a transaction, for checkpoints."""
        with self._lock, self._connections.writing() as connection:
            try:
                yield connection
            except apsw.Error as error:
                raise translate(error) from error

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()
