"""What a walk over sessions looks at: threads, their rows and calls, summaries, and what a model would be shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.core.sessions.tokens import OTHER, message_tokens, system_tokens
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.sessions import read
from holdfast.flow.sessions.sessions import session_state
from holdfast.records.messages import INTERRUPTED_RESULT, Message
from tests.model.sessions_life_model import Talk
from tests.model.sessions_model import INSTRUCTIONS, Line, Said
from tests.model.sessions_walk import Client, Walk, label
from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

Shape = tuple[Any, ...]
Count = Callable[[str], int]


def seen(message: Message) -> Shape:
    """A message as a reader gets it, as far as the model knows it."""
    calls = [(call.id, call.provider_id) for call in message.tool_calls]
    answers = [result.tool_call_id for result in message.tool_results]
    return (message.id, message.role, label(message), calls, answers, message.pinned)


def told(said: Said) -> Shape:
    """The same, as the model has it."""
    return (said.id, said.role, said.text, said.calls, said.answers, said.pinned)


def at_line(walk: Walk, id: str, line: Line, client: Client | None = None) -> None:
    """A thread shows what it should, counts it, and knows which calls wait."""
    session = walk.session(id, line.name, client)
    env, stream = session._env, session._thread_stream
    shown, expected = [seen(message) for message in session.messages()], [told(said) for said in line.said]
    assert shown == expected, f"{stream} shows {shown}, not {expected}"
    assert len(session) == len(line.said), f"{stream} counts {len(session)} messages, not {len(line.said)}"
    positions = [place.row["position"] for place in read.iter_places_after(env, stream)]
    assert positions == list(range(1, len(line.said) + 1)), f"{stream} has the positions {positions}"
    state = load_current_state(env, stream)
    assert state.thread is not None
    assert set(state.thread.calls) == line.waiting, f"{stream}: {list(state.thread.calls)} wait, not {line.waiting}"
    assert state == env.journal.load(env.tenant, stream), "the rows do not give what the events give"
    at_summaries(session, line)


def at_summaries(session: Session, line: Line) -> None:
    """None stands for what another does; together they stand for the line from its beginning, but for instructions."""
    found = session.compaction.summaries()
    texts, expected = [one.text for one in found], [note.text for note in line.standing()]
    assert texts == expected, f"{line.name} has the summaries {texts}, not {expected}"
    covered = [message.id for one in found for message in session.compaction.expand(one)]
    rest = [said.id for said in line.said[len(line.first()) :]]
    assert covered == rest[: len(covered)], "the summaries do not stand for the beginning of the line"
    assert len(set(covered)) == len(covered), "two summaries stand for the same"


def at_talk(walk: Walk, client: Client, id: str, talk: Talk) -> None:
    """A session's status, threads, settings and place in the list."""
    session = walk.session(id, next(iter(talk.lines)), client)
    assert session.details.status == talk.status, f"{id} is {session.details.status}, not {talk.status}"
    state = session_state(client.hf.env, id)
    assert state.generation == talk.generation, f"{id} is in another generation"
    assert session.details.threads == tuple(sorted(talk.lines))
    assert (session.details.system, session.title) == (talk.settings.get("system"), talk.settings.get("title"))
    assert session.details.metadata == talk.settings.get("metadata", {})
    (listed,) = [info for info in client.hf.sessions() if info.id == id]
    assert (listed.status, listed.threads) == (talk.status, len(talk.lines))
    assert listed.messages == sum(len(line.said) for line in talk.lines.values())
    assert listed.active_at == talk.active
    handovers = state.handovers.values()
    assert sorted(one.attempts for one in handovers) == sorted(one.attempts for one in talk.pending)


# packs


def at_pack(pack: ContextPack, line: Line, session: Session, most: int | None) -> None:
    """Valid for every provider, within its budget counted anew, with the newest round and in order."""
    assert openai_problems(pack.to_openai()["messages"]) == []
    assert anthropic_problems(pack.to_anthropic()) == []
    assert responses_problems(pack.to_responses()) == []
    tokenizer = session._env.models.tokenizer(pack.tokenizer)  # type: ignore[union-attr]
    cost = sum(message_tokens(message, tokenizer.count, OTHER) for message in pack.messages)
    cost += system_tokens(pack.system, tokenizer.count, OTHER) + OTHER.reply
    assert cost == pack.tokens <= pack.budget, f"it costs {cost}, says {pack.tokens}, and may cost {pack.budget}"
    assert most is None or len(pack.messages) <= most
    _at_order(pack, line)
    _at_results(pack, line)
    _at_pins(pack, line, session, tokenizer.count, most)


def _at_order(pack: ContextPack, line: Line) -> None:
    """The newest round, those before it without a gap, nothing that was retracted, all in the order of the line."""
    at = {said.id: index for index, said in enumerate(line.said)}
    shown = [message for message in pack.conversation.messages if message.id]
    assert all(message.id in at for message in shown), "something is shown that is not part of the line"
    heads = [at[message.id] for message in shown if message.role != "tool"]
    assert all(one < other for one, other in pairwise(heads))
    covered = line.covered()
    rest = [index for index, said in enumerate(line.said) if said.role != "tool" and said not in covered]
    if rest:
        assert rest[-1] in heads, "the newest round is not shown"
    assert set(range(len(line.first()))) <= set(heads), "the first instructions are not shown"
    kept = pinned_heads(line)
    plain = [index for index in rest if index not in kept and line.said[index].role not in INSTRUCTIONS]
    loose = [index for index in heads if index in plain]
    assert loose == plain[len(plain) - len(loose) :], "there is a gap"


def _at_results(pack: ContextPack, line: Line) -> None:
    """A stand-in is shown only for a result that has not come."""
    came = {id for said in line.said for id in said.answers}
    for message in pack.conversation.messages:
        for result in message.tool_results:
            if result.interrupted:
                assert result.tool_call_id not in came, "a result that came is shown as one that did not"


def _at_pins(pack: ContextPack, line: Line, session: Session, count: Count, most: int | None) -> None:
    """What is pinned is shown, if there is room for it."""
    shown = {message.id for message in pack.conversation.messages}
    missing = [index for index in pinned_heads(line) if line.said[index].id not in shown]
    if not missing:
        return
    stored = {message.id: message for message in session.messages()}
    stand_in = OTHER.message + OTHER.result + count(INTERRUPTED_RESULT)
    for index in missing:
        calls = {id for id, _ in line.said[index].calls}
        round = [line.said[index], *(said for said in line.said if calls & set(said.answers))]
        size = sum(message_tokens(stored[said.id], count, OTHER) for said in round)
        open_calls = len(calls - {id for said in round for id in said.answers})
        size += open_calls * stand_in
        messages = len(pack.messages) + len(round) + open_calls
        fits = size <= pack.budget - pack.tokens and (most is None or messages <= most)
        assert not fits, f"{line.said[index].text} is pinned and left out, though it fits"


def pinned_heads(line: Line) -> set[int]:
    """Where the rounds begin in which something is pinned."""
    owner = {id: index for index, said in enumerate(line.said) for id, _ in said.calls}
    found = set()
    for index, said in enumerate(line.said):
        if said.pinned:
            found |= {owner[id] for id in said.answers} if said.answers else {index}
    return found
