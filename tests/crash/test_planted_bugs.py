"""Tests that can fail: each promise is broken on purpose, and the test that guards it must notice.

Every bug is a patch made here, never a switch in the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.journal import chain
from holdfast.errors import HoldfastError
from holdfast.flow.journal import append as changing
from holdfast.journal.sqlite import SqliteJournal, statements, transaction
from holdfast.records.batches import BatchPart, Head
from holdfast.sqlite import connection
from holdfast.testing.journal_contract import JournalContract
from holdfast.testing.writer import Writer
from tests.crash import test_bit_rot, test_erasure_on_disk
from tests.edges import test_group_commit
from tests.model import test_cache

Check = Callable[[Path], None]


def contract(name: str) -> Check:
    """One test of the contract, on SQLite."""

    def run(folder: Path) -> None:
        numbers = itertools.count()
        made: list[SqliteJournal] = []

        def make() -> SqliteJournal:
            made.append(SqliteJournal(folder / f"{next(numbers)}.db"))
            return made[-1]

        journal = make()
        known = {"journal": journal, "writer": Writer(journal), "make_journal": make, "tmp_path": folder}
        test = getattr(JournalContract, name)
        wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]
        try:
            test(JournalContract(), **{argument: known[argument] for argument in wanted})
        finally:
            for one in made:
                one.close()

    return run


def patched_query(name: str, edit: Callable[[str], str]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        edited = {**statements.queries(), name: edit(statements.queries()[name])}
        assert edited != statements.queries()
        patch.setattr(transaction, "queries", lambda: edited)

    return plant


def epoch_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain, "OWNER_TYPES", frozenset())


def version_not_compared(patch: pytest.MonkeyPatch) -> None:
    def careless(part: BatchPart, head: Head) -> HoldfastError | None:
        return None

    patch.setattr(transaction, "find_refusal", careless)


def foreign_keys_off(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(connection.PRAGMAS, "foreign_keys", 0)


def row_without_event(patch: pytest.MonkeyPatch) -> None:
    original = transaction.SqlitePlan.write

    def write(self: transaction.SqlitePlan) -> None:
        original(self)
        sql = "UPDATE frames SET used = used + 1"
        self._connection.execute(sql)

    patch.setattr(transaction.SqlitePlan, "write", write)


def event_without_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction, "_projection_statements", lambda *_: [])


def cache_before_commit(patch: pytest.MonkeyPatch) -> None:
    def write(env: Any, writes: Any, artifacts: Any, states: Any) -> Any:
        batch = changing.seal_batch(env, writes, artifacts)
        for part in batch.parts:
            state = states.get(part.stream)
            if state is not None:
                env.states.put(env.tenant, part.stream, changing.replace(state, version=state.version + 1))
        return batch, env.journal.append(batch)

    patch.setattr(changing, "append_writes", write)


def follower_not_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_group_commit, "WAIT", 0.3)
    original = transaction.GroupCommit._take_members

    def take_members(self: transaction.GroupCommit, joined: transaction.CommitRound) -> Any:
        members = original(self, joined)
        joined.members = members[:1]
        return members[:1]

    patch.setattr(transaction.GroupCommit, "_take_members", take_members)


def undrained_returning(patch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    original = transaction.SqliteWriter.commit

    def commit(self: transaction.SqliteWriter, members: Any) -> None:
        original(self, members)
        self._connections.write(
            lambda writer: kept.append(writer.execute("UPDATE meta SET value = value RETURNING name"))
        )

    patch.setattr(transaction.SqliteWriter, "commit", commit)


def content_left_in_free_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(connection.PRAGMAS, "secure_delete", 0)


def log_not_truncated(patch: pytest.MonkeyPatch) -> None:
    from holdfast.sqlite.pool import SqlitePool

    patch.setattr(SqlitePool, "truncate_log", lambda self: None)


def chain_without_facts(patch: pytest.MonkeyPatch) -> None:
    from holdfast.flow.journal import verify

    def careless(previous: bytes, event: Any) -> bytes:
        return bytes(event.hash)

    patch.setattr(verify, "link_hash", careless)


def salt_not_erased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chain, "link_hash", lambda previous, event: chain.outer_hash(previous, event.facts))


def _drop_tenant(sql: str) -> str:
    return sql.replace("k.tenant = t.id AND k.stream = s.id AND k.key", "k.key")


def _or_ignore(sql: str) -> str:
    return sql.replace("INSERT INTO", "INSERT OR IGNORE INTO")


def rot(folder: Path) -> None:
    class Folders:
        def mktemp(self, name: str) -> Path:
            (folder / name).mkdir()
            return folder / name

    healthy = test_bit_rot.healthy._get_wrapped_function()(Folders())  # type: ignore[attr-defined]
    (folder / "work").mkdir()
    # Not by random flips: those of content are noticed by its digest, and few hit an envelope.
    test_bit_rot.check_columns(healthy, folder / "work", {"events"})


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Check]] = [
    (epoch_ignored, contract("test_only_the_owner_of_the_newest_epoch_may_write_owner_events")),
    (version_not_compared, contract("test_a_stale_version_is_refused_and_nothing_is_written")),
    (foreign_keys_off, contract("test_rows_that_refer_to_nothing_are_refused")),
    (row_without_event, contract("test_rebuilt_equals_live")),
    (event_without_row, contract("test_rebuilt_equals_live")),
    (
        cache_before_commit,
        lambda _: test_cache.test_after_any_error_the_next_answer_is_the_journal_s(holdfast.Unavailable(), "before"),
    ),
    (follower_not_settled, lambda _: test_group_commit.test_followers_share_the_next_commit()),
    (undrained_returning, test_group_commit.test_no_operation_leaves_a_lock_or_a_transaction_behind),
    (patched_query("wanted_heads", _drop_tenant), contract("test_a_key_holds_for_one_stream_of_one_tenant")),
    (patched_query("insert_event", _or_ignore), contract("test_the_very_same_batch_is_recognised_without_a_key")),
    (content_left_in_free_pages, test_erasure_on_disk.test_a_hundred_canaries_leave_every_byte),
    (log_not_truncated, test_erasure_on_disk.test_a_hundred_canaries_leave_every_byte),
    (chain_without_facts, rot),
    (salt_not_erased, contract("test_each_hash_continues_the_one_before")),
]


def _names() -> Iterator[str]:
    for plant, _ in BUGS:
        yield plant.__name__


@pytest.mark.parametrize(("plant", "check"), BUGS, ids=[f"{n}-{name}" for n, name in enumerate(_names())])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, bugged = tmp_path / "sound", tmp_path / "bugged"
    sound.mkdir()
    bugged.mkdir()
    check(sound)
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((Exception, pytest.fail.Exception)):
            check(bugged)
