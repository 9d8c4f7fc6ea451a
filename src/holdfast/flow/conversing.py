"""Saying something: messages at the end of a line, in one commit, as they are or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.counting import framing_of
from holdfast.core.decide.lines import append_messages, begin_anew, is_over
from holdfast.core.said import TRUST
from holdfast.errors import Conflict, InvalidMessage, Refused
from holdfast.flow import artifacts
from holdfast.flow.change import Changed, change, state_of
from holdfast.flow.lines import APPENDED, decoded, session_of
from holdfast.flow.preparing import Prepared, Preparing
from holdfast.flow.showing import current
from holdfast.ports import Acting, Models, Ports, Tokenizer
from holdfast.records.batches import Artifact
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.frames import StreamState
from holdfast.records.lines import Line
from holdfast.records.messages import Message
from holdfast.records.models import ModelInfo
from holdfast.records.reports import Progress


def models(ports: Ports) -> Models:
    """The models port, which every client has."""
    assert ports.models is not None, "a client without models cannot count tokens"
    return ports.models


def counting(ports: Ports, acting: Acting, stream: str, model: str | None = None) -> tuple[Tokenizer, ModelInfo]:
    """How a session's tokens are counted, and for which model."""
    session = state_of(ports, acting, session_of(stream)).session
    info = models(ports).info(model or (None if session is None else session.model))
    name = None if session is None or model is not None else session.tokenizer
    return models(ports).tokenizer(name or info.tokenizer), info


TRIES = 100
"""Whoever says something does not mind that others did meanwhile, so it is tried for as long as it takes."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to the session in the same commit as messages to one of its lines."""

    drafts: Callable[[StreamState], list[Draft]]
    artifacts: tuple[Artifact, ...] = ()
    model: str | None = None
    """The model that the session will have, for counting."""


def append(
    ports: Ports,
    acting: Acting,
    stream: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    pinned: bool = False,
    progress: Progress | None = None,
) -> list[Message]:
    """Messages at the end of a line, all or none, as they are stored."""
    return append_beside(ports, acting, stream, messages, key=key, pinned=pinned, progress=progress)[0]


def append_beside(
    ports: Ports,
    acting: Acting,
    stream: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    pinned: bool = False,
    progress: Progress | None = None,
    beside: Beside | None = None,
) -> tuple[list[Message], bool]:
    """As `append`, with something for the session; says also whether an earlier call with the key had done it."""
    if not messages:
        raise InvalidMessage("There is nothing to append. Pass a message, or a list of at least one.")
    tokenizer, info = counting(ports, acting, stream, None if beside is None else beside.model)
    preparing = Preparing(ports, acting, tokenizer, framing_of(info.provider, info.name))
    prepared = preparing.all(messages, pinned=pinned, progress=progress)
    try:
        changed = _append(ports, acting, stream, prepared, key, beside)
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
    ports: Ports, acting: Acting, stream: str, prepared: Prepared, key: str | None, beside: Beside | None
) -> Changed:
    session = session_of(stream)
    placed = prepared.artifacts if beside is None else (*prepared.artifacts, *beside.artifacts)

    def needs(states: Mapping[str, StreamState]) -> Sequence[str]:
        line = states[stream].line  # Only decisions refuse: these states may be no more than remembered.
        over = line is not None and line.ended
        return (session,) if (over or beside is not None) and session != stream else ()

    def decide(states: Mapping[str, StreamState]) -> dict[str, list[Draft]]:
        state = states[stream]
        line = state.line or Line()
        # Not as remembered: where another line began anew already, this commit does not touch the session's stream.
        over = is_over(state, stream)
        before, opened = begin_anew(line, current(ports, acting, session)) if over else ([], [])
        drafts = append_messages(line, state.version + len(before), prepared.entries)
        own = opened if beside is None else [*opened, *beside.drafts(states[session])]
        return {stream: [*before, *drafts], session: own}

    def same(events: list[Event]) -> bool:
        said = [event for event in events if event.type == "message.appended"]
        wanted = [(entry.role, entry.content) for entry in prepared.entries]
        return len(said) == len(wanted) and all(
            event.facts.role == role and (not event.content or event.content == content)
            for event, (role, content) in zip(said, wanted, strict=True)
        )

    return change(ports, acting, (stream,), decide, key=key, same=same, needs=needs, artifacts=placed, tries=TRIES)


def _given_back(stream: str, prepared: Prepared, changed: Changed) -> list[Message]:
    """What was just written, made from what was given: nothing is read back."""
    start = len(changed.facts) - len(prepared.messages)
    ids = changed.ids[start:]
    found = []
    for offset, (message, (_, facts)) in enumerate(zip(prepared.messages, changed.facts[start:], strict=True)):
        version = changed.version + start + offset
        calls = (replace(call, id=id) for call, (id, _) in zip(message.tool_calls, facts.calls, strict=True))
        results = zip(message.tool_results, facts.answers, strict=True)
        found.append(
            replace(
                message,
                tool_calls=tuple(calls),
                tool_results=tuple(replace(result, tool_call_id=id) for result, id in results),
                id=ids[offset],
                stream=stream,
                version=version,
                timestamp=changed.at,
                round=facts.round or version,
                tokens=facts.tokens,
                tokenizer=facts.tokenizer,
                pinned=facts.policy == "pinned",
                trust=TRUST.get(message.role, "external"),
            )
        )
    return found
