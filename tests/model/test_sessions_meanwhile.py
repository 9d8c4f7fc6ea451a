"""Between any two looks of one process at the journal another does something: it is as if one of them had been first.

Every pair of operations, at every such moment. What is left, and what each was told, is what one order or the
other gives; nothing is half of both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.errors import HoldfastError, Refused
from holdfast.flow.journal.append import load_state
from holdfast.flow.sessions import branch as session_branch
from holdfast.flow.sessions import read
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.model.meanwhile import Meanwhile
from tests.model.sessions_walk import Engine, count_fours, label
from tests.scale import SOAK, seeded

Act = Callable[[Holdfast], object]
HOUR = 3_600_000
CALL = {"id": "p", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
PAIRS = 30
"""How many pairs are tried in `make test`, at one moment each; `make soak` tries all at all moments."""


MINTED = re.compile(r"[0-9A-Z]{26}|(?<=data )[0-9]{9}|(?<=\[s)[0-9]+(?=\])")
"""Ids, marks, and the version at which a summary was written: what came in between is not in it, and counts there."""


def client(journal: Any, engine: Engine) -> Holdfast:
    clock = FrozenClock()
    clock.advance(HOUR)
    return Holdfast(
        assemble_env(journal, Settings(), clock, None, ClientExtensions(tokenizer=count_fours, memory=engine))
    )


def prepare(journal: MemoryJournal, engine: Engine) -> list[str]:
    """A thread and a branch of it, with a call that waits; gives the ids of its messages."""
    env = assemble_env(journal, Settings(), FrozenClock(), None, ClientExtensions(tokenizer=count_fours, memory=engine))
    chat = Holdfast(env).session("a", idle_timeout=60)
    said = chat.append(["m0", "m1", "m2", {"role": "assistant", "content": "m3", "tool_calls": [CALL]}, "m4", "m5"])
    chat.fork(said[4], thread="b").append("b0")
    return [message.id for message in said]


def main(hf: Holdfast) -> Session:
    return hf.session("a")


def branch(hf: Holdfast) -> Session:
    return hf.session("a", thread="b")


def operations(ids: list[str], who: str) -> dict[str, Act]:
    """What one of the two may do, with names of its own for what it adds."""
    return {
        "say": lambda hf: main(hf).append(f"{who} says"),
        "say in the branch": lambda hf: branch(hf).append(f"{who} says"),
        "answer": lambda hf: main(hf).append_result("p", f"{who} answers"),
        "answer in the branch": lambda hf: branch(hf).append_result("p", f"{who} answers"),
        "rewind far": lambda hf: main(hf).rewind(to=ids[1]),
        "rewind near": lambda hf: main(hf).rewind(to=ids[4]),
        "rewind the branch": lambda hf: branch(hf).rewind(to=ids[2]),
        "fork": lambda hf: main(hf).fork(ids[3], thread=f"{who} forks"),
        "fork the newest": lambda hf: main(hf).fork(thread=f"{who} forks"),
        "fork the branch": lambda hf: branch(hf).fork(thread=f"{who} forks"),
        "pin": lambda hf: main(hf).pin(ids[2]),
        "summarise": lambda hf: main(hf).compact(keep=1, summarizer=lambda messages: f"{who}'s words"),
        "summarise the branch": lambda hf: branch(hf).compact(keep=0, summarizer=lambda messages: f"{who}'s words"),
        "add a thread": lambda hf: hf.session("a", thread=f"{who} adds"),
        "reset": lambda hf: main(hf).reset(),
        "close": lambda hf: main(hf).close(),
        "sweep": lambda hf: hf.sweep_sessions(),
        "change": lambda hf: hf.session("a", title=f"{who}'s title"),
    }


def turn(hf: Holdfast, ids: list[str]) -> None:
    """Take the branch back and go on in another way."""
    branch(hf).rewind(to=ids[2])
    branch(hf).append("rather so")


NAMES = list(operations(["0"] * 6, "nobody"))
TURN = "turn the branch"
"""Two commits, which only the other may do at once."""


def acts(ids: list[str], first: str, second: str) -> tuple[Act, Act]:
    others = {**operations(ids, "other"), TURN: lambda hf: turn(hf, ids)}
    return operations(ids, "one")[first], others[second]


def told(act: Act, hf: Holdfast) -> str:
    """What whoever did it was told."""
    try:
        act(hf)
    except Refused:
        return "refused"
    except HoldfastError as error:
        return type(error).__name__
    return "done"


def seen(journal: MemoryJournal, engine: Engine) -> tuple[Any, ...]:
    """Everything that is left, without ids."""
    hf = client(journal, engine)
    found: list[Any] = [main(hf).details.status, main(hf).title]
    for thread in main(hf).details.threads:
        chat = hf.session("a", thread=thread)
        state = read.thread_state(hf.env, chat._thread_stream)
        places = [place.row["position"] for place in read.iter_places_after(hf.env, chat._thread_stream)]
        said = [(label(message), message.pinned) for message in chat.messages()]
        covered = [
            (one.text, [label(message) for message in chat.compaction.expand(one)])
            for one in chat.compaction.summaries()
        ]
        # Ids and marks are minted.
        shown = [MINTED.sub("…", label(message)) for message in chat.pack(10_000).messages]
        found.append((thread, said, places, len(chat), covered, len(state.calls), shown))
    assert hf.journal.verify().findings == ()
    handed = [(cause, said) for _, cause, said in engine.taken.values()]
    return (*found, handed)


@cache
def in_order(first: str, second: str, swapped: bool) -> str:
    """What each was told and what is left, if one waits for the other."""
    journal, engine = MemoryJournal(), Engine()
    ids = prepare(journal, engine)
    mine, theirs = acts(ids, first, second)
    hf, other = client(journal, engine), client(journal, engine)
    turns = [(theirs, other), (mine, hf)] if swapped else [(mine, hf), (theirs, other)]
    answers = [told(act, one) for act, one in turns]
    return repr((answers[::-1] if swapped else answers, seen(journal, engine)))


def at_once(first: str, second: str, number: int) -> str | None:
    """The second just before the n-th look of the first at the journal; None if it looks less often."""
    journal, engine = MemoryJournal(), Engine()
    ids = prepare(journal, engine)
    mine, theirs = acts(ids, first, second)
    racing = Meanwhile(journal)
    hf, other = client(racing, engine), client(journal, engine)
    for thread in ("main", "b"):
        hf.session("a", thread=thread).pack()  # It remembers how things stood.
    answers = ["", ""]

    def act() -> None:
        answers[1] = told(theirs, other)

    racing.after(number, act)
    answers[0] = told(mine, hf)
    racing.after(0, act)
    return repr((answers, seen(journal, engine))) if answers[1] else None


def check(first: str, second: str, number: int) -> bool:
    found = at_once(first, second, number)
    if found is None:
        return False
    orders = [in_order(first, second, swapped) for swapped in (False, True)]
    assert found in orders, f"{second} before look {number} of {first}:\n{found}\nis neither\n" + "\nnor\n".join(orders)
    return True


def test_two_at_once_are_one_after_the_other() -> None:
    random = seeded("meanwhile")
    pairs = list(itertools.product(NAMES, [*NAMES, TURN]))
    if not SOAK:
        assert sum(check(*random.choice(pairs), random.randint(1, 12)) for _ in range(PAIRS))
        return
    for first, second in pairs:
        assert next(number for number in itertools.count(1) if not check(first, second, number)) > 1


# tests that can fail


def parent_as_it_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_branch, "load_current_state", load_state)


def place_looked_up_before_deciding(patch: pytest.MonkeyPatch) -> None:
    """A message that is retracted between two looks is rewound to all the same."""
    original, known = session_branch.find_place, dict[str, Any]()

    def place_of(env: Any, stream: str, message: Any) -> Any:
        if message not in known:
            known[message] = original(env, stream, message)
        return known[message]

    patch.setattr(session_branch, "find_place", place_of)


@pytest.mark.parametrize(
    ("plant", "first", "second"),
    [
        (parent_as_it_is_remembered, "fork the branch", TURN),
        (place_looked_up_before_deciding, "rewind near", "rewind far"),
    ],
)
def test_a_planted_bug_is_caught(plant: Any, first: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 20):
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                check(first, second, number)
            except AssertionError:
                return
    pytest.fail("nobody noticed")
