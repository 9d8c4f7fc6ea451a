"""What a client keeps in memory of a line for its next pack: whoever changes the line, the next pack is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast import Holdfast, Message, Session, ToolCallRequest
from holdfast.flow.packs import recent
from holdfast.flow.packs.recent import ThreadTail
from holdfast.system import Lru
from tests.packs.pack_trials import NO_MEMORY
from tests.packs.worlds import TOOLS

BUDGET = 400


class Clients(NamedTuple):
    """Two that remember, and one that does not."""

    one: Holdfast
    two: Holdfast
    fresh: Holdfast


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    path = str(tmp_path / "a.db")
    with holdfast.open(path) as one, holdfast.open(path) as two, holdfast.open(path, settings=NO_MEMORY) as fresh:
        one.session("s", model="gpt-4o", system="Be terse.")
        yield Clients(one, two, fresh)


def words(nth: int, much: int = 12) -> str:
    return f"message {nth} " + "with some words " * much


def same(clients: Clients, thread: str = "main", budget: int = BUDGET) -> list[str]:
    """What is shown, which is what somebody without a memory is shown."""
    packs = [hf.session("s", thread=thread).pack(budget) for hf in clients]
    assert len({pack.digest for pack in packs}) == 1
    assert len({pack.token_summary for pack in packs}) == 1
    assert len({(pack._packed.window_start, pack._packed.cached_tokens) for pack in packs}) == 1
    return [message.text for message in packs[0].messages]


def test_first_instructions_may_come_one_by_one(clients: Clients) -> None:
    chat = clients.one.session("s")
    same(clients)
    for nth in range(3):
        chat.append({"role": "developer", "content": f"rule {nth}"})
        same(clients)
    for nth in range(15):
        chat.append(words(nth))
        assert same(clients)[:3] == ["rule 0", "rule 1", "rule 2"]


def emptied(chat: Session) -> None:
    chat.rewind(before=chat.messages()[0])


def begun_anew(chat: Session) -> None:
    chat.reset()


@pytest.mark.parametrize("change", [emptied, begun_anew], ids=lambda change: change.__name__)
def test_what_a_line_begins_with_now_is_shown_in_a_pack_of_any_size(
    clients: Clients, change: Callable[[Session], None]
) -> None:
    """A window of another size knows that there were no first instructions: that was another beginning."""
    clients.one.session("s").append([words(nth) for nth in range(20)])
    for budget in (BUDGET, 2 * BUDGET, BUDGET):
        same(clients, budget=budget)
    other = clients.two.session("s")
    change(other)
    other.append([{"role": "developer", "content": "Use metres."}, *(words(nth) for nth in range(20))])
    for budget in (2 * BUDGET, BUDGET):
        assert same(clients, budget=budget)[0] == "Use metres."


@pytest.mark.parametrize("first", [("user", "Hello."), ("developer", "Use metres.")], ids=["said", "instructed"])
def test_packs_of_different_sizes_by_turns_are_what_they_would_be_alone(
    clients: Clients, first: tuple[str, str]
) -> None:
    chat = clients.one.session("s")
    chat.append({"role": first[0], "content": first[1]})
    for nth in range(30):
        chat.append(words(nth))
        if nth % 9 == 5:
            chat.pin(chat.messages(3)[0])
        for budget in (BUDGET, 3 * BUDGET):
            shown = same(clients, budget=budget)
    assert (shown[0] == first[1]) == (first[0] == "developer")


def test_however_many_rows_are_asked_for_at_a_time_the_pack_is_the_same(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = clients.one.session("s")
    chat.append([words(nth, nth % 7) for nth in range(90)])
    chat.rewind(to=chat.messages()[70])
    chat.append([words(nth, 1) for nth in range(9)])
    shown = set()
    for rows in (1, 2, 5, 17, 64):
        monkeypatch.setattr(recent, "PAGE", rows)
        monkeypatch.setattr(recent, "MIN_PAGE", rows)
        shown.add(clients.fresh.session("s").pack(3 * BUDGET).digest)
    assert len(shown) == 1


def test_a_pin_in_a_line_is_seen_in_those_that_branched_off(clients: Clients) -> None:
    chat = clients.one.session("s")
    said = [chat.append(words(nth)) for nth in range(20)]
    chat.fork(thread="branch")
    assert words(0) not in same(clients, "branch")
    chat.pin(said[0])
    assert words(0) in same(clients, "branch")
    clients.two.session("s").unpin(said[0])
    assert words(0) not in same(clients, "branch")


def test_what_another_client_erased_is_gone(clients: Clients) -> None:
    clients.one.as_user("bob").session("s").append("I am Bob.")
    clients.one.session("s").append("Hello.")
    assert same(clients) == ["I am Bob.", "Hello."]
    clients.two.journal.erase("bob")
    assert same(clients) == ["[erased]", "Hello."]


def test_the_pack_that_another_client_journaled_last_is_where_the_window_stays(clients: Clients) -> None:
    mine, other = clients.one.session("s"), clients.two.session("s")
    for nth in range(40):
        (mine if nth % 3 else other).append(words(nth))
        same(clients)
        if nth % 4 == 1:
            chat = mine if nth % 8 == 1 else other
            chat.packs.begin_model_call(chat.pack(BUDGET, stickiness=(nth % 5) / 10))
    assert clients.one.session("s").pack(BUDGET).cached_share > 0


@pytest.mark.parametrize("later", [3, 20])
def test_a_pinned_call_gets_its_result(clients: Clients, later: int) -> None:
    chat = clients.one.session("s")
    call = chat.append(
        Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),)), policy="pinned"
    ).tool_calls[0]
    for nth in range(later):
        chat.append(words(nth))
        same(clients)
    clients.two.session("s").append_result(call, "found")
    for nth in range(15):
        chat.append(words(nth))
        same(clients)


def test_where_reading_stops_at_something_long_nobody_shows_more(clients: Clients) -> None:
    """Whoever reads anew stops where that seems to fill the pack. Whoever remembers more must not show more."""
    chat = clients.one.session("s")
    chat.append([words(nth) for nth in range(28)])
    same(clients, budget=3_000)
    for _ in range(2):
        chat.append("Administrative responsibilities necessitate extraordinary international standardization. " * 400)
        same(clients, budget=3_000)
    for nth in range(3):
        chat.append(words(nth))
        same(clients, budget=3_000)


def rewound(chat: Session) -> None:
    chat.rewind(to=chat.messages()[-4])


def summarised(chat: Session) -> None:
    chat.compact(keep=3, summarizer=lambda *_, **__: "what came before")


def called(chat: Session) -> None:
    chat.packs.begin_model_call(chat.pack(BUDGET))


def reset(chat: Session) -> None:
    chat.reset()
    chat.append("Anew.")


def test_a_system_prompt_and_a_brief_that_another_client_gave_are_shown(clients: Clients) -> None:
    clients.one.session("s").append("Hello.")
    given: list[dict[str, Any]] = [{"system": "Be long."}, {"tools": TOOLS}, {"tools": []}, {"system": "Be terse."}]
    for change in given:
        same(clients)
        clients.two.session("s", **change)
        same(clients)
    clients.two.session("s").packs.set_brief(invariants=["Be kind."])
    same(clients)
    assert "Be kind." in (clients.one.session("s").pack(BUDGET).system or "")


@pytest.mark.parametrize("change", [rewound, summarised, called, reset], ids=lambda change: change.__name__)
def test_whatever_another_client_does_to_a_line_is_seen(clients: Clients, change: Callable[[Session], None]) -> None:
    chat = clients.one.session("s")
    for nth in range(20):
        chat.append(words(nth))
    before = same(clients)
    change(clients.two.session("s"))
    assert (same(clients) == before) == (change is called)
    for nth in range(20, 26):
        chat.append(words(nth))
        same(clients)


def test_what_is_kept_does_not_grow_with_the_conversation(clients: Clients) -> None:
    chat = clients.one.session("s")
    sizes = []
    for nth in range(60):
        chat.append(words(nth))
        chat.pack(BUDGET)
        kept = clients.one.env.recent
        assert isinstance(kept, Lru)
        (known,) = (one for one in kept._kept.values() if isinstance(one, ThreadTail))
        sizes.append(len(known.messages))
    assert max(sizes[20:]) <= max(sizes[10:20]) + 2
