"""Frame events as an agent makes them, valid in fold and in rows: push, call, evidence, spend, pop.

The payload of a push is about 244 bytes of goal and inputs, the size that the design's
numbers are given for.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.ports import Env, Ids
from holdfast.records.events.calls import CallContent, ToolRequested, ToolReturned
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import (
    FramePopped,
    FramePushed,
    FrameSpent,
    GoalContent,
    HandleAdded,
    HandleContent,
    OutcomeContent,
)
from holdfast.records.ids import ulid_text
from holdfast.records.usage import Usage

GOAL = GoalContent(
    goal="Find out why the nightly import of the supplier catalogue lost rows, and propose a repair without downtime.",
    inputs={
        "source": "catalogue/2024-11",
        "rows_expected": 48213,
        "rows_found": 47998,
        "sample": ["A-17", "B-70", "C-90"],
        "owner": "team-7",
    },
)
USAGE = Usage(input=1200, cached_input=800, output=340, cost=4_100_000)
TURN = 9
"""Events of one turn."""

EVENTS_A_STREAM = 45
"""How long streams become in a filled journal."""


def pushed(ids: Ids, frame: str | None = None, parent: str | None = None) -> Draft:
    """A frame begins: a root, or a child of another."""
    facts = FramePushed(
        frame=frame or ulid_text(ids.ulid()), parent=parent, depth=0 if parent is None else 1, granted=4000
    )
    return Draft(type="frame.pushed", facts=facts, content=GOAL)


def turn(ids: Ids) -> list[Draft]:
    """A root frame from push to pop: a tool call, evidence, a child frame, what it all used."""
    root, child, call, handle = (ulid_text(ids.ulid()) for _ in range(4))
    return [
        pushed(ids, root),
        Draft(
            type="tool.requested",
            facts=ToolRequested(call=call, frame=root, name="query"),
            content=CallContent(arguments={"table": "catalogue", "day": "2024-11-03"}),
        ),
        Draft(
            type="tool.returned",
            facts=ToolReturned(call=call, frame=root, tokens=41),
            content=CallContent(value={"missing": 215, "first": "A-1", "last": "C-9"}),
        ),
        Draft(
            type="frame.handle_added",
            facts=HandleAdded(frame=root, handle=handle, kind="tool_output", tokens=41, call=call),
            content=HandleContent(description="The rows that were lost, by day"),
        ),
        Draft(type="frame.spent", facts=FrameSpent(frame=root, usage=USAGE)),
        pushed(ids, child, root),
        Draft(type="frame.spent", facts=FrameSpent(frame=child, usage=USAGE)),
        Draft(
            type="frame.popped",
            facts=FramePopped(
                frame=child,
                status="completed",
                parent=root,
                granted=4000,
                usage=USAGE,
                used=USAGE.spent,
                wakes_parent=True,
            ),
            content=OutcomeContent(summary="The importer skips rows whose price is empty."),
        ),
        Draft(
            type="frame.popped",
            facts=FramePopped(frame=root, status="completed", granted=4000, usage=USAGE + USAGE, used=2 * USAGE.spent),
            content=OutcomeContent(summary="Treat an empty price as unknown; replay the lost days."),
        ),
    ]


def turns(ids: Ids) -> Iterator[Draft]:
    """The events of one turn after another, for ever."""
    while True:
        yield from turn(ids)


def fill(env: Env, events: int, *, first: int = 0) -> int:
    """Write whole turns until there are about so many events more; returns how many there are.

    Streams `actor/filled-0`, `-1`, … get a few turns each, so their number grows with the journal.
    """
    written = 0
    stream = first
    while written < events:
        drafts = [draft for _ in range(EVENTS_A_STREAM // TURN) for draft in turn(env.ids)]
        append_events(env, [StreamWrite(stream=f"actor/filled-{stream}", events=tuple(drafts))])
        stream += 1
        written += len(drafts)
    return written
