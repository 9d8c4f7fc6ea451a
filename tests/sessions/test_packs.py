"""Packs of stored conversations: never over budget, valid, newest first, with what is known of the rest."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message, ToolCallRequest
from holdfast.client.session import Session
from holdfast.core.sessions.tokens import framing_of, request_tokens
from holdfast.errors import BudgetTooSmall
from holdfast.model.tokenizers import resolve_tokenizer
from tests.backends import IN_MEMORY
from tests.scale import seeded, volume
from tests.sessions.generated import calls
from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]


def grow(chat: Session, random: Random, count: int) -> None:
    """A conversation with calls, some torn, some late, and notes in between."""
    waiting: list[ToolCallRequest] = []
    for number in range(count):
        kind = random.random()
        if waiting and kind < 0.4:
            chat.append_result(waiting.pop(random.randrange(len(waiting))), "found " * random.randint(1, 60))
        elif kind < 0.6:
            calls = tuple(ToolCallRequest(name="find", provider_id=f"c{random.randint(1, 3)}") for _ in range(2))
            waiting += chat.append(Message(role="assistant", tool_calls=calls)).tool_calls
        else:
            role = random.choice(["user", "user", "assistant", "system"])
            chat.append(Message(role=role, content=f"{number} " + "words and more " * random.randint(1, 20)))


def check(pack: holdfast.ContextPack) -> None:
    assert pack.tokens <= pack.budget
    assert openai_problems(pack.to_openai()["messages"]) == []
    assert responses_problems(pack.to_responses()) == []
    assert anthropic_problems(pack.to_anthropic()) == []
    count = resolve_tokenizer(pack.tokenizer).count
    counted = request_tokens(pack.messages, count, framing_of("openai"), system=pack.system, tools=pack.tools)
    assert counted == pack.tokens


def needed(chat: Session, budget: int) -> int:
    """A budget, or what is said to be needed if it is too small."""
    try:
        chat.pack(budget)
    except BudgetTooSmall as error:
        return error.required
    return budget


def messages_needed(chat: Session, most: int) -> int:
    """A limit, or what is said to be needed if it is too small: first instructions stay, however many they are."""
    try:
        chat.pack(max_messages=most)
    except BudgetTooSmall as error:
        return error.required
    return most


@pytest.mark.parametrize("seed", range(volume(4, 40)))
def test_every_pack_fits_and_is_valid_for_every_provider(hf: Holdfast, seed: int) -> None:
    random = seeded(f"packs {seed}")
    chat = hf.session("alice", system="Be terse.", model="gpt-4o", tools=TOOLS)
    grow(chat, random, 60)
    if seed % 2:
        chat.compact(keep=5, max_tokens=100)
    for budget in (150, 300, 600, 1_000, 3_000, 100_000):
        least = needed(chat, budget)
        assert least >= budget
        check(chat.pack(least))
    for wanted in range(3, 12):
        most = messages_needed(chat, wanted)
        assert most >= wanted
        pack = chat.pack(max_messages=most)
        assert len(pack.messages) <= most
        check(pack)


def test_the_default_budget_is_the_models_window_less_its_reply(hf: Holdfast) -> None:
    chat = hf.session("alice", model="gpt-4o")
    chat.append("hello")
    info = holdfast.models.model_info("gpt-4o")
    assert chat.pack().budget == info.window - info.reply_reserve
    assert chat.pack().exact
    with hf.frame("work", session="alice") as frame:
        assert frame.limits.context_tokens == info.input_budget


def test_an_estimate_is_said_to_be_one(hf: Holdfast) -> None:
    chat = hf.session("alice", model="claude-opus-4-7")
    chat.append("hello")
    assert not chat.pack().exact
    assert "about" in repr(chat.pack())


def test_a_pack_says_what_it_leaves_out(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append([f"message {number}" for number in range(50)])
    pack = chat.pack(max_messages=10)
    assert len(pack.messages) == 10
    covered = pack.summaries[0].messages
    assert (pack.conversation.message_count, pack.conversation.truncated_count) == (9, 41 - covered)
    assert pack.conversation.estimated_tokens < pack.tokens
    assert [message.text for message in pack.messages][-1] == "message 49"


def test_a_summary_stands_for_what_it_covers_and_can_be_expanded(hf: Holdfast) -> None:
    chat = hf.session("alice")
    given = chat.append([f"Order {number} was confirmed for Bob." for number in range(40)])
    made = chat.compact(keep=5, max_tokens=80)
    assert made is not None
    assert made.messages == 35
    pack = chat.pack()
    assert pack.messages[0].text.startswith("Summary of previous context: ")
    assert pack.messages[0].role == "user", "users were heard in it, so it has no more say than they have"
    assert [message.text for message in pack.messages[1:]] == [message.text for message in given[35:]]
    assert pack.conversation.truncated_count == 0
    assert chat.compaction.expand(made) == given[:35]
    assert chat.messages() == given
    assert chat.compact(keep=5) is None
    chat.append([f"Later {number}" for number in range(10)])
    second = chat.compact(keep=5, max_tokens=80)
    assert [summary.id for summary in chat.compaction.summaries()] == [made.id, second.id]
    whole = chat.compact(keep=2, whole=True, max_tokens=80)
    assert [summary.id for summary in chat.compaction.summaries()] == [whole.id]
    assert chat.compaction.expand(whole) == chat.messages()[:48]
    assert chat.compaction.expand(made.id) == given[:35]


def test_a_failed_or_empty_summary_changes_nothing(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append([f"message {number}" for number in range(30)])
    before = hf.journal.position()

    def failing(messages: list[Message]) -> str:
        raise RuntimeError("no model today")

    for summarizer in (failing, lambda messages: "", lambda messages: None, lambda messages: "   "):
        with pytest.raises(holdfast.errors.SummaryFailed):
            chat.compact(summarizer=summarizer)
    assert hf.journal.position() == before
    assert len(chat.pack().messages) == 30


def test_open_calls_are_never_summarised_away(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append([f"message {number}" for number in range(5)])
    call = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),))).tool_calls[0]
    chat.append([f"later {number}" for number in range(20)])
    assert chat.compact(keep=2).messages == 5
    chat.append_result(call, "found")
    assert chat.compact(keep=2) is None, "a round is summarised as a whole, with its late result"
    chat.append(["more", "and more"])
    assert chat.compact(keep=2).messages == 22


def test_a_fork_summarises_what_it_shares_as_well(hf: Holdfast) -> None:
    chat = hf.session("alice")
    given = chat.append([f"shared {number}" for number in range(20)])
    side = chat.fork(at=given[14])
    side.append([f"own {number}" for number in range(5)])
    made = side.compact(keep=3)
    assert made.messages == 17
    assert side.compaction.expand(made) == side.messages()[:17]
    assert [message.text for message in side.pack().messages[1:]] == ["own 2", "own 3", "own 4"]
    assert len(chat.pack().messages) == 20, "the line that it was forked from is not touched"
    side.rewind(to=given[3])
    assert side.compaction.summaries() == []
    assert len(side.pack().messages) == 4
    inherited = chat.compact(keep=5)
    later = chat.fork()
    assert [summary.id for summary in later.compaction.summaries()] == [inherited.id]


@pytest.mark.parametrize("budget", [0, -1, True, "many", 1.5])
@IN_MEMORY
def test_a_budget_that_is_none_is_refused(hf: Holdfast, budget: object) -> None:
    chat = hf.session("alice")
    chat.append("hello")
    with pytest.raises(holdfast.errors.InvalidValue, match="budget must be"):
        chat.pack(budget)
    with pytest.raises(holdfast.errors.InvalidValue, match="max_messages must be"):
        chat.pack(max_messages=budget)


def test_a_budget_below_the_least_says_what_would_do(hf: Holdfast) -> None:
    chat = hf.session("alice", system="Be terse. " * 100)
    chat.append("hello")
    with pytest.raises(BudgetTooSmall) as small:
        chat.pack(50)
    assert chat.pack(small.value.required).messages[-1].text


def test_instructions_at_the_beginning_of_a_line_stay_in_every_pack_and_out_of_summaries(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append([{"role": "system", "content": "Be terse."}, {"role": "developer", "content": "Be kind."}])
    chat.append([f"message {number}" for number in range(50)])
    assert [message.text for message in chat.pack(120).messages][:2] == ["Be terse.", "Be kind."]
    side = chat.fork()
    side.append("more")
    assert side.pack(120).messages[0].text == "Be terse."
    chat.compact(keep=5, summarizer=lambda messages: "All was said.")
    shown = chat.pack().to_openai()["messages"]
    assert [message["content"] for message in shown if message["role"] in ("system", "developer")] == [
        "Be terse.",
        "Be kind.",
    ]
    assert chat.compaction.summaries()[0].messages == 45


def test_a_change_of_model_counts_anew_what_it_counts_differently(hf: Holdfast) -> None:
    chat = hf.session("alice", model="gpt-4o")
    chat.append("look", files=[("cat.png", b"PNG")])
    large = chat.pack().tokens
    small = hf.session("alice", model="gpt-4o-mini").pack()
    assert small.tokens > 5 * large, "images cost this model far more"
    check(hf.session("alice", model="gpt-4o").pack())


def test_a_blank_system_prompt_costs_nothing() -> None:
    with holdfast.open("memory:") as hf:
        packs = [hf.session(f"s{at}", system=system).pack() for at, system in enumerate((None, " \n", "Be kind."))]
    costs = [pack.tokens for pack in packs]
    assert costs[0] == costs[1] < costs[2]
    assert all(anthropic_problems(dict(pack.to_anthropic())) == [] for pack in packs)


def test_a_large_note_in_the_middle_does_not_crowd_out_the_newest_message(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append([f"hello {number}" for number in range(30)])
    chat.append([{"role": "system", "content": "note " * 3_000}, "What now?"])
    assert [message.text for message in chat.pack(1_000).conversation.messages] == ["What now?"]
    with pytest.raises(holdfast.errors.BudgetTooSmall) as small:
        chat.pack(5)
    assert chat.pack(small.value.required).messages[-1].text


def test_what_pins_and_first_instructions_cost_does_not_follow_the_history(tmp_path: Path) -> None:
    read: list[int] = []
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        journal = hf.env.journal
        real = journal.read
        for count in (500, 4_000):
            chat = hf.session(f"s{count}")
            chat.append([{"role": "system", "content": "Be terse."}, "keep this"])
            chat.pin(chat.messages()[1])
            chat.append([f"message {number}" for number in range(count)])
            seen = 0

            def counting(query: Any, real: Any = real) -> Any:
                nonlocal seen
                found = real(query)
                seen += len(found)
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(journal, "read", counting)
                shown = chat.pack(500).messages
            assert [message.text for message in shown[:2]] == ["Be terse.", "keep this"]
            read.append(seen)
    assert abs(read[0] - read[1]) <= 5


def test_exact_means_counted_by_the_models_own_tokenizer(hf: Holdfast) -> None:
    for number, (model, tokenizer) in enumerate([("claude-opus-4-7", "o200k_base"), ("gpt-5-mini", "cl100k_base")]):
        chat = hf.session(f"s{number}", model=model, tokenizer=tokenizer)
        chat.append("hello")
        assert not chat.pack().exact
    pictured = hf.session("p", model="gpt-4o")
    assert pictured.pack().exact
    pictured.append("look", files=[("cat.png", b"PNG")])
    assert not pictured.pack().exact


def test_open_calls_are_named_so_that_a_torn_one_can_be_settled(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["hi", calls("Rome"), *[f"message {number}" for number in range(30)]])
    assert chat.compact(5).messages == 1
    assert chat.compact(5) is None
    (torn,) = chat.details.open_calls()
    chat.append_result(torn, "Never came back.", is_error=True)
    chat.append([f"later {number}" for number in range(10)])
    assert chat.compact(5).messages > 30
    assert chat.details.open_calls() == []


def test_compacting_after_a_reset_has_nothing_to_do(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append("hello")
    chat.reset()
    assert chat.compact() is None
