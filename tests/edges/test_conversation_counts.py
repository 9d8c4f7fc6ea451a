"""Flatness in counts: what a conversation asks of SQLite does not grow with what was said before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from bench.counting import Counts, counting
from bench.counts import difference
from holdfast import Holdfast, Session
from holdfast.journal.sqlite import rows
from holdfast.journal.sqlite.statements import span_sql as sound_span
from holdfast.records.batches import SessionQuery
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.scale import volume

SMALL = volume(300, 1_000)
LARGE = volume(6_000, 100_000)
APART = 10.0
"""Percent by which two sizes may differ."""

BUDGET = 8_000
WORDS = "the parcel of order 17 went to Reykjavík by way of Hull, where nobody had heard of it; " * 2

Act = Callable[[], object]


def quarters(text: str) -> int:
    """Tokens, roughly: exact ones take longer and change nothing here."""
    return len(text) // 4


def _appended(chat: Session) -> Act:
    return lambda: chat.append(WORDS)


def _taken_up(chat: Session) -> Act:
    """As a process does that has just begun: nothing is remembered."""

    def act() -> None:
        chat._env.states.clear()
        chat.append(WORDS)

    return act


def _packed(chat: Session) -> Act:
    def act() -> None:
        assert chat._env.recent is not None
        chat._env.recent.clear()  # Else there is nothing to read.
        chat.pack(BUDGET)

    return act


def _read(chat: Session) -> Act:
    return lambda: chat.messages(20)


def _rewound(chat: Session) -> Act:
    newest = chat.append([WORDS] * 4)[0]
    return lambda: chat.rewind(to=newest)


def _forked(chat: Session) -> Act:
    return lambda: chat.fork()


FORK = "fork at the newest"
KINDS: dict[str, tuple[Callable[[Session], Act], int]] = {
    "append of a message": (_appended, 60),
    "append after a start": (_taken_up, 60),
    "pack of 8 000 tokens": (_packed, 3),
    "the newest 20 messages": (_read, 3),
    "rewind by three messages": (_rewound, 20),
    FORK: (_forked, 40),
}
"""What is measured, and how often: enough for page splits to average out."""


def _counted(chat: Session, kind: str) -> Counts:
    prepare, times = KINDS[kind]
    prepare(chat)()
    total = Counts()
    for _ in range(times):
        act = prepare(chat)
        with counting(chat._env.journal) as counts:
            act()
        for name in Counts.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total.per(times)


def _fill(chat: Session, size: int) -> None:
    """More of a conversation with calls and results, in few commits."""
    turn = [
        {"role": "user", "content": WORDS},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "track", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": WORDS},
        {"role": "assistant", "content": WORDS},
    ]
    while len(chat) < size:
        chat.append(turn * min(250, -(-(size - len(chat)) // len(turn))))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    clock = FrozenClock()
    path = tmp_path_factory.mktemp("counts") / "a.db"
    ids = SeededIds(clock, seed=1)
    # The text index merges what it holds now and then, so it has bounds of its own: tests/search/test_counts.py.
    settings = holdfast.Settings(index_text=0)
    with holdfast.open(path, durability="fast", clock=clock, ids=ids, tokenizer=quarters, settings=settings) as hf:
        yield hf


@pytest.fixture(scope="module")
def both_sizes(opened: Holdfast) -> dict[str, tuple[Counts, Counts]]:
    """Each operation's counts in a short conversation and in a long one."""
    # A session's state names its threads: the one that is forked often is not the one that is taken up.
    chat, forked = (opened.session(name, system="You are terse.") for name in ("long", "forked"))
    found: dict[str, list[Counts]] = {kind: [] for kind in KINDS}
    for _ in range(60):
        forked.fork()  # Their pages fill up first, so that both samples find them alike.
    for size in (SMALL, LARGE):
        _fill(chat, size)
        _fill(forked, size)
        for kind in KINDS:
            found[kind].append(_counted(forked if kind == FORK else chat, kind))
    return {kind: (few, many) for kind, (few, many) in found.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", ["calls", "statements", "vm_steps", "pages"])
def test_counts_do_not_grow_with_the_conversation(
    both_sizes: dict[str, tuple[Counts, Counts]], kind: str, count: str
) -> None:
    few, many = both_sizes[kind]
    assert difference(getattr(few, count), getattr(many, count)) <= APART, (few, many)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_that_are_looked_at_grow_no_faster_than_trees_do(
    both_sizes: dict[str, tuple[Counts, Counts]], kind: str
) -> None:
    few, many = both_sizes[kind]
    assert many.pages_read <= few.pages_read * 2, (few, many)


def test_a_read_that_does_not_follow_the_answer_would_be_seen(
    opened: Holdfast, both_sizes: dict[str, tuple[Counts, Counts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rows, "span_sql", lambda *given, **how: sound_span(*given, **how).replace("version", "+version")
    )
    chat = opened.session("long")
    for kind in ("pack of 8 000 tokens", "the newest 20 messages"):
        assert difference(both_sizes[kind][0].vm_steps, _counted(chat, kind).vm_steps) > APART


def test_a_page_of_sessions_costs_the_same_among_few_and_among_many(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast", clock=FrozenClock()) as hf:
        found: dict[str, list[Counts]] = {}
        users = [hf.as_user(name) for name in ("ann", "bob")]
        for number in range(10):
            users[0].session(f"of ann {number}", idle_timeout=60)
        for first, last in ((0, 40), (40, volume(300, 20_000))):
            for number in range(first, last):
                users[1].session(f"of bob {number}")
            for name, wanted in (("all", SessionQuery(limit=10)), ("of a user", SessionQuery(limit=10, user="ann"))):
                with counting(hf.env.journal) as counts:
                    assert len(hf.env.journal.sessions("default", wanted)) == 10
                found.setdefault(name, []).append(counts)
            with counting(hf.env.journal) as counts:
                assert hf.sweep_sessions().ended == 0
            found.setdefault("idle", []).append(counts)
    for name, (few, many) in found.items():
        for count in ("statements", "vm_steps"):
            assert difference(getattr(few, count), getattr(many, count)) <= APART, (name, few, many)
