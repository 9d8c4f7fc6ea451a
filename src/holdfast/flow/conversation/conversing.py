"""Saying something: messages at the end of a line, in one commit, as they are or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.counting import framing_of
from holdfast.core.decide.lines import append_messages, begin_anew, is_over
from holdfast.core.fencing import TRUSTED
from holdfast.core.said import TRUST, policy_beside
from holdfast.errors import Conflict, InvalidMessage, InvalidValue, Refused
from holdfast.flow import artifacts
from holdfast.flow.change import Changed, change, state_of
from holdfast.flow.conversation.lines import APPENDED, decoded, session_of
from holdfast.flow.conversation.preparing import Prepared, Preparing
from holdfast.flow.stack.showing import current, stream_of
from holdfast.ports import Acting, Models, Ports, Tokenizer
from holdfast.records.batches import Artifact
from holdfast.records.events.conversations import MessageAppended, ThreadOpened
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.frames import StreamState
from holdfast.records.lines import Line
from holdfast.records.messages import Message
from holdfast.records.models import ModelInfo
from holdfast.records.reports import Progress
from holdfast.records.scope import parse_scope


def models(ports: Ports) -> Models:
    """The models port, which every client has."""
    assert ports.models is not None, "a client without models cannot count tokens"
    return ports.models


def counting(ports: Ports, acting: Acting, stream: str, model: str | None = None) -> tuple[Tokenizer, ModelInfo]:
    """How the tokens of a line are counted, and for which model."""
    session = state_of(ports, acting, session_behind(ports, acting, stream)).session
    info = models(ports).info(model or (None if session is None else session.model))
    name = None if session is None or model is not None else session.tokenizer
    return models(ports).tokenizer(name or info.tokenizer), info


def session_behind(ports: Ports, acting: Acting, stream: str) -> str:
    """The session's stream of a line; for a frame's own line, that of the session which its actor works in."""
    frame = parse_scope(stream).get("frame")
    return session_of(stream if frame is None else stream_of(ports, acting, frame))


TRIES = 100
"""Whoever says something does not mind that others did meanwhile, so it is tried for as long as it takes."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to the session in the same commit as messages to one of its lines."""

    drafts: Callable[[StreamState], list[Draft]]
    artifacts: tuple[Artifact, ...] = ()
    model: str | None = None
    """The model that the session will have, for counting."""


class Saying(msgspec.Struct, frozen=True, kw_only=True):
    """Who says something, if it is a frame: where that one lives, and what refuses it once it has ended."""

    home: str
    check: Callable[[], None]


def append(
    ports: Ports,
    acting: Acting,
    stream: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    pinned: bool = False,
    policy: str | None = None,
    progress: Progress | None = None,
    saying: Saying | None = None,
) -> list[Message]:
    """Messages at the end of a line, all or none, as they are stored."""
    told = policy_given(pinned, policy)
    return append_beside(ports, acting, stream, messages, key=key, policy=told, progress=progress, saying=saying)[0]


def policy_given(pinned: bool, policy: str | None) -> str | None:
    """What may become of messages, said in one of two ways."""
    if pinned and policy not in (None, "pinned"):
        raise InvalidValue(f"pinned=True and policy={policy!r} contradict each other. Give one of them.")
    return "pinned" if pinned else policy


def check_role(acting: Acting, messages: Sequence[Message]) -> None:
    """Role follows trust: nobody who may not instruct a model speaks as its system."""
    if acting.trust not in TRUSTED and any(TRUST.get(message.role) == "operator" for message in messages):
        raise InvalidMessage(f"What comes from {acting.trust} cannot be said as the system. Append it as the user's.")


def append_beside(
    ports: Ports,
    acting: Acting,
    stream: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    pinned: bool = False,
    policy: str | None = None,
    progress: Progress | None = None,
    beside: Beside | None = None,
    saying: Saying | None = None,
) -> tuple[list[Message], bool]:
    """As `append`, with something for the session; says also whether an earlier call with the key had done it."""
    if not messages:
        raise InvalidMessage("There is nothing to append. Pass a message, or a list of at least one.")
    check_role(acting, messages)
    tokenizer, info = counting(ports, acting, stream, None if beside is None else beside.model)
    preparing = Preparing(ports, acting, tokenizer, framing_of(info.provider, info.name))
    prepared = preparing.all(messages, policy=policy_given(pinned, policy), progress=progress)
    try:
        changed = _append(ports, acting, stream, prepared, key, beside, saying)
    except (Refused, Conflict):
        artifacts.withdraw(ports, acting, prepared.artifacts)
        raise
    if changed.repeated:
        artifacts.withdraw(ports, acting, prepared.artifacts)
        events = [event for event in changed.events if isinstance(event, Event) and event.type in APPENDED]
        pins = {(event.stream, event.version) for event in events if event.facts.policy == "pinned"}
        return decoded(ports, acting, events, pins), True
    return _given_back(stream, prepared, changed), False


def _append(
    ports: Ports,
    acting: Acting,
    stream: str,
    prepared: Prepared,
    key: str | None,
    beside: Beside | None,
    saying: Saying | None,
) -> Changed:
    session = session_of(stream)
    private = saying is not None and session == stream
    placed = prepared.artifacts if beside is None else (*prepared.artifacts, *beside.artifacts)

    def needs(states: Mapping[str, StreamState]) -> Sequence[str]:
        line = states[stream].line  # Only decisions refuse: these states may be no more than remembered.
        over = line is not None and line.ended
        return (session,) if (over or beside is not None) and session != stream else ()

    def decide(states: Mapping[str, StreamState]) -> dict[str, list[Draft]]:
        if saying is not None:
            saying.check()
        state = states[stream]
        line = state.line or Line()
        if private and state.line is None:  # A frame's own line begins with the first thing that is said in it.
            opened = Draft(type="thread.opened", facts=ThreadOpened(private=True))
            return {stream: [opened, *append_messages(line, state.version + 1, prepared.entries)]}
        # Not as remembered: where another line began anew already, this commit does not touch the session's stream.
        over = is_over(state, stream)
        before, anew = begin_anew(line, current(ports, acting, session)) if over else ([], [])
        drafts = {stream: [*before, *append_messages(line, state.version + len(before), prepared.entries)]}
        own = anew if beside is None else [*anew, *beside.drafts(states[session])]
        return {**drafts, session: own} if own else drafts

    def same(events: list[Event]) -> bool:
        said = [event for event in events if event.type == "message.appended"]
        wanted = [(entry.role, entry.content) for entry in prepared.entries]
        return len(said) == len(wanted) and all(
            event.facts.role == role and (not event.content or event.content == content)
            for event, (role, content) in zip(said, wanted, strict=True)
        )

    streams = (stream,) if saying is None else (stream, saying.home)
    return change(ports, acting, streams, decide, key=key, same=same, needs=needs, artifacts=placed, tries=TRIES)


def _given_back(stream: str, prepared: Prepared, changed: Changed) -> list[Message]:
    """What was just written, made from what was given: nothing is read back."""
    start = len(changed.facts) - len(prepared.messages)
    facts = [facts for _, facts in changed.facts[start:]]
    return as_stored(stream, prepared, facts, changed.ids[start:], changed.version + start, changed.at)


def as_stored(
    stream: str, prepared: Prepared, appended: Sequence[MessageAppended], ids: Sequence[str], version: int, at: int
) -> list[Message]:
    """Messages as they are stored from a version on, each with its facts and its id."""
    found = []
    for message, facts, id in zip(prepared.messages, appended, ids, strict=True):
        calls = (replace(call, id=own) for call, (own, _) in zip(message.tool_calls, facts.calls, strict=True))
        results = zip(message.tool_results, facts.answers, strict=True)
        found.append(
            replace(
                message,
                tool_calls=tuple(calls),
                tool_results=tuple(replace(result, tool_call_id=own) for result, own in results),
                id=id,
                stream=stream,
                version=version,
                timestamp=at,
                round=facts.round or version,
                tokens=facts.tokens,
                tokenizer=facts.tokenizer,
                pinned=facts.policy == "pinned",
                policy=policy_beside(facts),
                trust=TRUST.get(message.role, "external"),
            )
        )
        version += 1
    return found
