"""`holdfast stack`: the live frames of a journal, as the tree that they are. It only looks and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from holdfast.ambient import SystemClock
from holdfast.cli.main import OK
from holdfast.cli.opening import JournalPath, Json, Tenant, open_existing, switch
from holdfast.cli.output import emit, fields, note
from holdfast.cli.tree import Forest
from holdfast.client.holdfast import Holdfast
from holdfast.errors import QuestionNotFound
from holdfast.records.events.envelope import Erased
from holdfast.records.resume import FrameInfo, PendingWork, QuestionInfo
from holdfast.records.scope import Scope

# Of the journal's content only goals are shown; the outcome is that of an ended frame.
LEFT_OUT = ("inputs", "metadata", "summary", "error", "value", "completed_at")
Where = Annotated[
    str | None,
    Parameter(show_default=False, help="Only this scope: a scope's text or a session's id. Without it, every scope."),
]


def stack(
    path: JournalPath = None,
    /,
    scope: Where = None,
    *,
    pending: Annotated[bool, switch("Add what was begun and not finished, as a restart would find it.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show the live frames as a tree: goals, statuses, budgets, calls, questions, deadlines."""
    with open_existing(path, tenant) as hf:
        forests = ((forest, _pending(hf, forest, pending)) for forest in _forests(hf, scope))
        if json:
            emit({"scopes": [as_json(forest, undone) for forest, undone in forests]})
            return OK
        shown = False
        for forest, undone in forests:
            forest.show(undone)
            shown = True
    if not shown:
        note("No frame is live." if scope is None else f"No frame is live in {Scope.of(scope).text}.")
    return OK


def _forests(hf: Holdfast, scope: str | None) -> Iterator[Forest]:
    """Scope by scope, so that a journal with any number of them can be shown."""
    found: Iterable[tuple[str, list[FrameInfo]]]
    found = hf.index.stacks() if scope is None else [(Scope.of(scope).text, hf.index.stack(scope))]
    for stream, frames in found:
        if frames:
            yield forest_of(hf, stream, frames)


def forest_of(hf: Holdfast, scope: str, frames: Sequence[FrameInfo]) -> Forest:
    """Frames of one scope with what their questions ask, as of now."""
    questions: dict[str, QuestionInfo] = {}
    for frame in frames:
        if frame.question is not None:
            # It may be answered and resumed while we look.
            with suppress(QuestionNotFound):
                questions[frame.question.id] = hf.index.question(frame.question.id)
    return Forest(scope, frames, questions, SystemClock().now_ms())


def _pending(hf: Holdfast, forest: Forest, wanted: bool) -> Sequence[PendingWork] | None:
    return hf.index.resume_actor(forest.scope).pending if wanted else None


def as_json(forest: Forest, pending: Sequence[PendingWork] | None) -> dict[str, Any]:
    """One scope with full ids. `erased` tells a goal that is gone from one that never was."""
    found: dict[str, Any] = {
        "scope": forest.scope,
        "frames": [_frame(forest, frame) for frame in forest.frames],
    }
    if pending is not None:
        found["pending"] = msgspec.to_builtins(pending)
    return found


def _frame(forest: Forest, frame: FrameInfo) -> dict[str, Any]:
    known = fields(frame)
    for name in LEFT_OUT:
        del known[name]
    question = frame.question and forest.questions.get(frame.question.id)
    known["erased"] = isinstance(frame.goal, Erased)
    known["tokens"] |= {"available": frame.tokens.available, "overdraft": frame.tokens.overdraft}
    known["left_ms"] = forest.left_ms(frame)
    known["question"] = None if question is None else fields(question)
    return known
