"""What a pack made now would do with a fact, and with which budget it would show it. Nothing is journaled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.advice import target
from holdfast.core.history_tools import NAMES
from holdfast.core.tracing import Fact, Look, Sighting, best, tool_words, words
from holdfast.errors import BudgetExhausted, BudgetTooSmall, EvidenceFailed, FrameEnded, InvalidValue, NotFound, Refused
from holdfast.flow.context import packing, seeing
from holdfast.flow.context.asked import Asked
from holdfast.flow.context.glimpsing import BRIEF, covers
from holdfast.flow.context.seeing import Seen
from holdfast.flow.context.sighting import Said
from holdfast.flow.conversation.conversing import counting, models
from holdfast.flow.conversation.lines import Place, places
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import ContextPacked
from holdfast.records.packs import Layout, Packed, Segment

FARTHEST: Final = 2_000
"""Messages that a larger budget is asked to reach back over, at most."""
_TRIES: Final = (100, 130, 180, 260)
"""How much of what it seems to take is tried, in hundredths: windows and shares move with the budget."""
_ROUND: Final = 50


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack made now would do."""

    look: Look
    tools: bool = False
    budget: int | None = None
    refused: str | None = None


def foreseen(
    ports: Ports,
    acting: Acting,
    line: str,
    fact: Fact,
    known: Said,
    newest: ContextPacked | None,
    *,
    covered: bool,
) -> Foreseen:
    """What the next pack would do if it were asked for as the newest journaled one was."""
    seen = _seen(ports, acting, line, newest)
    asked = _asked(ports, newest)
    try:
        made = packing.pack(ports, acting, seen, asked)
    except (BudgetTooSmall, BudgetExhausted, EvidenceFailed) as error:
        return Foreseen(look=Look("absent"), refused=str(error))
    look = look_into(made, fact, known)
    tools = {tool.name for tool in made.tools} >= NAMES
    # What a summary stands for is shown by no budget.
    budget = None if look.seen or covered else _reaching(ports, acting, seen, asked, fact, known, made)
    return Foreseen(look=look, tools=tools, budget=budget)


def _asked(ports: Ports, newest: ContextPacked | None) -> Asked:
    if newest is None:
        return Asked()
    layout: Layout = "classic" if newest.layout == "classic" else "stable"
    return Asked(budget=newest.asked, role=newest.role, tokenizer=_known(ports, newest.tokenizer), layout=layout)


def _known(ports: Ports, tokenizer: str) -> str | None:
    """A tokenizer of an application may be unknown here, as to the command line: then it is the model's own."""
    try:
        return models(ports).tokenizer(tokenizer).name
    except InvalidValue:
        return None


def _seen(ports: Ports, acting: Acting, line: str, newest: ContextPacked | None) -> Seen:
    """What the frame of the newest pack sees, as long as it lives; else the line alone."""
    if newest is not None and newest.frame is not None:
        try:
            found = seeing.seen_by(ports, acting, newest.frame)
        except (FrameEnded, NotFound):
            return seeing.seen_in(line)
        return found if found.line == line else seeing.seen_in(line)
    return seeing.seen_in(line)


def look_into(made: Packed, fact: Fact, known: Said) -> Look:
    """What a pack does with a fact, by what it shows."""
    messages = {(one.stream, one.version): one for one in known.messages}
    beside = {one.name for one in known.found if one.kind == "evidence"}
    looks = [_look(made, segment, fact, messages, beside) for segment in made.segments]
    looks += [Look("absent", one.id, one.reason) for one in made.decisions if one.id in beside and not one.shown]
    return best(looks) or Look("absent", None, "older" if messages else None)


def _look(
    made: Packed, segment: Segment, fact: Fact, messages: dict[tuple[str, int], Sighting], beside: set[str]
) -> Look | None:
    told = [made.system, tool_words(made.tools)] if segment.id == BRIEF else []
    saying = [one for one in segment.messages if fact.within(words(one))]
    match segment.kind:
        case "conversation":
            cut = list(_shown(segment, messages))
            names = [messages[one.stream, one.version].name for one in saying if (one.stream, one.version) in messages]
            if saying:
                return Look("shown", (names or [segment.id])[-1])
            return Look("shortened", cut[-1].name, "cut") if cut else None
        case "summary":
            if saying:
                return Look("summarised", segment.id, "repeated")
            summary = next(one for one in made.summaries if _is_of(segment, one.stream, one.version))
            return Look("summarised", segment.id, "covered") if covers(summary, [*messages.values()]) else None
        case "evidence" | "memory":
            if saying:
                return Look("recalled", segment.id)
            return Look("shortened", segment.id, "cut") if segment.id in beside else None
    return Look("shown", segment.id) if saying or fact.within(*told) else None


def _shown(segment: Segment, messages: dict[tuple[str, int], Sighting]) -> Iterator[Sighting]:
    """Messages that say it and that a segment was made from."""
    for origin in segment.origins:
        for (stream, version), one in messages.items():
            if stream == origin.stream and (origin.first or 0) <= version <= (origin.last or 0):
                yield one


def _is_of(segment: Segment, stream: str, version: int) -> bool:
    return any((origin.stream, origin.first) == (stream, version) for origin in segment.origins)


# a larger budget


def _reaching(
    ports: Ports, acting: Acting, seen: Seen, asked: Asked, fact: Fact, known: Said, made: Packed
) -> int | None:
    """A budget with which a pack shows it, tried out; None if that is more than the model takes."""
    one = target(known.found, seen.line)
    if one is None or seen.frame is not None:
        return None  # A frame's budget is not the caller's alone to raise.
    _, info = counting(ports, acting, seen.line)
    needed = _needed(ports, acting, seen.line, one, made)
    for share in _TRIES if needed is not None else ():
        budget = -(-(needed or 0) * share // (100 * _ROUND)) * _ROUND
        if budget > info.input_budget:
            return None
        try:
            tried = packing.pack(ports, acting, seen, replace(asked, budget=budget))
        except Refused:
            continue
        if look_into(tried, fact, known).seen:
            return budget
    return None


def _needed(ports: Ports, acting: Acting, line: str, one: Sighting, made: Packed) -> int | None:
    """About what a pack takes that reaches back to a message."""
    between: list[Place] = []
    for place in takewhile(lambda _: len(between) < FARTHEST, places(ports, acting, line)):
        between.append(place)
        if (place.stream, place.version) == (one.stream, one.version):
            break
    else:
        return None
    summary = made.token_summary
    beside = summary.used - summary.breakdown.conversation
    return max(summary.budget, beside + sum(int(place.row["tokens"] or 0) for place in between)) + _ROUND
