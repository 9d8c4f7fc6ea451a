"""What packs of a growing conversation leave for the next one: it saves work, and never changes what is shown.

The planted bugs at the end show that each of these tests can fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import ContextPack, Holdfast, Message, Session, ToolCallRequest, ToolCallResult
from holdfast.client import pack as client_pack
from holdfast.core.packs import assemble, manifest
from holdfast.core.packs.runs import MAX_HINT_MESSAGES, PackHints, RoundRun
from holdfast.core.sessions import rounds
from holdfast.core.sessions.rounds import ConversationRounds
from holdfast.core.wire import openai_responses
from holdfast.core.wire.calls import KnownIds
from holdfast.flow.packs import hints, visibility
from holdfast.flow.packs.hints import TailHints
from holdfast.ports import Env
from tests.packs.growing import IMAGE, WIDE, compare, growing, requests
from tests.packs.test_pack_properties import seeds
from tests.packs.test_remembered_windows import Clients, clients

__all__ = ["clients"]

LONG = 1_000_000
"""A budget that shows everything."""


@pytest.fixture(autouse=True)
def short_conversations_leave_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MIN_ROUNDS", 1)
    monkeypatch.setattr(assemble, "MIN_EVEN", 1)


def grow(chat: Session, number: int, *, first: int = 0) -> None:
    """Append rounds of short messages."""
    said = [{"role": role, "content": f"{role} {nth}"} for nth in range(number) for role in ("user", "assistant")]
    chat.append([one | {"content": f"{one['content']} of {first}"} for one in said])


def same(clients: Clients, budget: int = WIDE) -> ContextPack:
    """The pack of the first client, which is what it is without hints, in another client as well."""
    chat, other = clients.one.session("s"), clients.fresh.session("s")
    found = chat.pack(budget)
    assert found.digest == other.pack(budget).digest
    assert compare(chat._env, visibility.thread_visibility(chat._thread_stream), found, budget, {}) == []
    return found


def count_calls(work: Callable[[], Any]) -> int:
    """Count the Python calls of some work; each comprehension and each step of a generator is one."""
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


# the same packs


def test_packs_of_a_conversation_that_grows_are_those_that_anybody_makes(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds("growing", 6, 300)):
        assert growing(seed, tmp_path / f"{number}.db", 30) == []


def test_what_was_rewound_is_not_shown_again(clients: Clients) -> None:
    chat = clients.one.session("s")
    grow(chat, 20)
    same(clients)
    clients.two.session("s").rewind(to=chat.messages()[30])
    grow(clients.two.session("s"), 20, first=1)
    assert not any("19 of 0" in message.text for message in same(clients).messages)


def test_the_digest_of_a_pack_changes_with_what_was_erased(clients: Clients) -> None:
    clients.one.as_user("bob").session("s").append("I am Bob.")
    chat = clients.one.session("s")
    grow(chat, 10)
    before = same(clients)
    chat.packs.begin_model_call(before)
    clients.two.journal.erase("bob")
    grow(chat, 1, first=1)
    after = same(clients)
    assert "Bob" not in str(requests(after))
    assert chat.pack_at(chat.packs.begin_model_call(after)).digest == after.digest


def test_each_provider_is_sent_its_own_form(clients: Clients) -> None:
    chat = clients.one.session("s")
    for nth in range(5):
        call = ToolCallRequest(name="look", provider_id=f"c{nth}")
        result = ToolCallResult(provider_id=call.provider_id, result=f"found {nth}")
        chat.append([Message(role="assistant", tool_calls=(call,)), Message(role="tool", tool_results=(result,))])
        same(clients)


def test_ids_of_calls_stay_unique_when_a_provider_gives_one_that_was_made_here(clients: Clients) -> None:
    chat = clients.one.session("s")

    def call(id: str) -> str:
        asked = Message(role="assistant", tool_calls=(ToolCallRequest(name="look", provider_id=id),))
        said = chat.append([asked, Message(role="tool", tool_results=(ToolCallResult(provider_id=id, result="."),))])
        same(clients)
        return str(said[0].tool_calls[0].id)

    call("x")
    made = call("x")  # The second call with an id is sent under one of ours.
    call("y")
    call(made)
    ids = [one["id"] for message in chat.pack(WIDE).to_openai()["messages"] for one in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids) == 4


def test_a_result_that_comes_late_is_shown_with_its_call(clients: Clients) -> None:
    chat = clients.one.session("s")
    grow(chat, 3)
    asked = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="look"),)))
    same(clients)
    grow(chat, 3, first=1)
    same(clients)
    chat.append_result(asked.tool_calls[0], "found it")
    grow(chat, 1, first=2)
    assert "found it" in str(same(clients).to_openai())


def test_a_question_is_critical_while_its_turn_goes_on_and_no_longer(clients: Clients) -> None:
    chat = clients.one.session("s")
    grow(chat, 4)
    for number in range(2):
        with chat.turn(f"question {number}", budget=WIDE) as turn:
            for nth in range(3):
                step: Any = turn.steps(at_once=1)[0]
                seen = visibility.frame_visibility(chat._env, turn.id, turn=turn.engine.place.started)
                assert compare(chat._env, seen, step.pack, WIDE, {}, journaled=True) == []
                made = {"id": f"c{nth}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                step.done({"role": "assistant", "content": None, "tool_calls": [made]} if nth < 2 else "Done.")
                if nth < 2:
                    turn.steps(at_once=1)[0].done("found")
        same(clients)


def test_files_are_loaded_for_each_request(clients: Clients) -> None:
    chat = clients.one.session("s")
    grow(chat, 2)
    chat.append(Message(role="user", content=[IMAGE]))
    for nth in range(3):
        grow(chat, 1, first=nth)
        assert "iVBORw0KGgo" in str(same(clients).to_openai()), "the image is sent"
        loaded = chat.pack(WIDE).load_files()
        assert requests(loaded) == requests(chat.pack(WIDE))


def test_clients_that_keep_no_windows_make_the_same_packs(clients: Clients) -> None:
    chat = clients.fresh.session("s")
    for nth in range(3):
        grow(chat, 3, first=nth)
        same(clients)
    env: Env = chat._env
    assert env.hints is not None
    assert len(env.hints) == 0, "what cannot be used is not kept"


# what callers do with requests


def scramble(value: Any) -> None:
    """Change everything that can be changed in plain data."""
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        scramble(one)
    if isinstance(value, dict | list):
        value.clear()


def test_changing_a_request_changes_no_later_one(clients: Clients) -> None:
    chat = clients.one.session("s")
    for nth in range(4):
        call = ToolCallRequest(name="look", provider_id=f"c{nth}", arguments='{"at": {"x": 1}}')
        result = ToolCallResult(provider_id=call.provider_id, result=[{"type": "text", "text": f"found {nth}"}])
        chat.append([Message(role="assistant", tool_calls=(call,)), Message(role="tool", tool_results=(result,))])
        scramble(requests(same(clients)))
        found = same(clients)
        scramble(requests(found))
        assert requests(found) == requests(clients.fresh.session("s").pack(WIDE))


# the work


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[Holdfast, Session]]]:
    """A conversation of so many messages that was packed before."""
    monkeypatch.undo()
    with holdfast.open("memory:") as hf:

        def make(messages: int) -> tuple[Holdfast, Session]:
            chat = hf.session(f"s{messages}", model="gpt-4o", system="Be terse.")
            for nth in range(messages // 200):
                grow(chat, 100, first=nth)
            for nth in range(2):
                pack = chat.pack(LONG)
                assert len(pack.messages) == messages + 2 * nth
                requests(pack)
                chat.packs.begin_model_call(pack)
                grow(chat, 1, first=messages + nth)
            return hf, chat

        yield make


@pytest.mark.parametrize("work", ["pack", "begin_model_call", "to_openai", "to_responses", "to_anthropic"])
def test_work_after_one_new_round_follows_the_round_and_not_the_window(
    long: Callable[[int], tuple[Holdfast, Session]], work: str
) -> None:
    counted = {}
    for messages in (400, 2_000):
        _, chat = long(messages)
        made: list[ContextPack] = []
        counted[messages] = count_calls(lambda chat=chat, made=made: made.append(chat.pack(LONG)))
        if work == "begin_model_call":
            counted[messages] = count_calls(lambda chat=chat, made=made: chat.packs.begin_model_call(made[0]))
        elif work != "pack":
            counted[messages] = count_calls(getattr(made[0], work))
    assert counted[2_000] <= 600, "far below one call for each message"
    assert counted[2_000] <= counted[400] + 40


def test_one_turn_of_many_rounds_is_not_walked_at_every_call(
    long: Callable[[int], tuple[Holdfast, Session]],
) -> None:
    """The run holds the rounds of the turn too, and those before it are not lost when the next turn begins."""
    _, chat = long(400)
    counts = []
    wish = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    for _ in range(3):
        with chat.turn("go on", budget=LONG) as turn:
            for _ in range(3):
                steps: list[Any] = []
                counts.append(count_calls(lambda turn=turn, steps=steps: steps.extend(turn.steps(at_once=1))))
                steps[0].done({"role": "assistant", "content": None, "tool_calls": [wish]})
                turn.steps(at_once=1)[0].done("found")
            turn.steps(at_once=1)[0].done("Done.")
    assert max(counts[1:]) < 1_200


def test_hints_of_all_conversations_together_have_a_limit() -> None:
    with holdfast.open("memory:") as hf:
        env: Any = hf.session("s")._env
        env.hints._most = 30
        for number in range(8):
            chat = hf.session(f"s{number}", model="gpt-4o")
            grow(chat, 5)
            chat.pack(WIDE)
        assert 0 < env.hints._weight <= 30
        assert len(env.hints) <= 3
    assert MAX_HINT_MESSAGES < 1 << 20


def test_short_conversations_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with holdfast.open("memory:") as hf:
        chat = hf.session("s", model="gpt-4o")
        grow(chat, 20)
        for nth in range(3):
            chat.pack(WIDE)
            grow(chat, 1, first=nth)
        env: Any = chat._env
        assert len(env.hints) == 0


# planted bugs


def a_hint_is_used_after_a_rewind(patch: pytest.MonkeyPatch) -> None:
    find = ConversationRounds.round
    patch.setattr(hints, "continues", lambda tail, earlier: len(tail.messages) > earlier.settled)
    patch.setattr(ConversationRounds, "round", lambda self, nth: [] if nth == -1 else find(self, nth))


def a_digest_is_used_after_an_erasure(patch: pytest.MonkeyPatch) -> None:
    begin = TailHints.__init__

    def keep(self: TailHints, tail: Any, place: Any, known: PackHints | None) -> None:
        begin(self, tail, place, known)
        if known is not None:
            self.kept.digest = known.digest

    patch.setattr(TailHints, "__init__", keep)
    patch.setattr(manifest, "begins_with", lambda messages, known: len(messages) >= len(known))


def a_rendered_message_is_used_for_another_provider(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(openai_responses, "LIST_FORMAT", replace(openai_responses.LIST_FORMAT, name="openai"))


def requests_share_what_was_rendered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_pack, "copy_items", list)


def ids_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownIds, "is_apart_from", lambda self, messages: True)


def new_messages_are_always_repaired_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "stand_alone", lambda messages: True)
    patch.setattr(rounds, "_REACHING", frozenset())


def questions_stay_what_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundRun, "fit_to", lambda self, reasons: self)


def files_are_kept_as_they_were_before_they_were_loaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.core.wire.growth.holds_files", lambda message: False)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Clients], None]]] = [
    (a_hint_is_used_after_a_rewind, test_what_was_rewound_is_not_shown_again),
    (a_digest_is_used_after_an_erasure, test_the_digest_of_a_pack_changes_with_what_was_erased),
    (a_rendered_message_is_used_for_another_provider, test_each_provider_is_sent_its_own_form),
    (requests_share_what_was_rendered, test_changing_a_request_changes_no_later_one),
    (ids_are_not_looked_at, test_ids_of_calls_stay_unique_when_a_provider_gives_one_that_was_made_here),
    (new_messages_are_always_repaired_alone, test_a_result_that_comes_late_is_shown_with_its_call),
    (questions_stay_what_they_were, test_a_question_is_critical_while_its_turn_goes_on_and_no_longer),
    (files_are_kept_as_they_were_before_they_were_loaded, test_files_are_loaded_for_each_request),
]


@pytest.mark.parametrize(("plant", "test"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_hint_that_does_not_hold_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[Clients], None],
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, holdfast.Corrupt)):
        test(clients)
