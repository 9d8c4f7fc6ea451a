"""`holdfast stack`: show the live frames of a journal as a tree. Read-only.

A terminal and a pipe get the same lines; only guides and colours differ. Goals and questions are untrusted text:
all of it is escaped before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from rich.text import Text
from rich.tree import Tree

from holdfast.cli.open import JournalPath, Json, Tenant, open_existing, option, switch
from holdfast.cli.output import (
    ERASED_TEXT,
    console,
    encode_json,
    escape_text,
    format_duration,
    plain_fields,
    print_json,
    print_note,
    write_lines,
)
from holdfast.client.holdfast import Holdfast
from holdfast.errors import QuestionNotFound
from holdfast.records.events.envelope import Erased
from holdfast.records.frames import Call, Question
from holdfast.records.recovery import FrameInfo, PendingWork, QuestionInfo
from holdfast.records.scope import Scope
from holdfast.system import SystemClock

# Of a frame's content only the goal is shown; the outcome fields are those of ended frames.
OMITTED_FIELDS = ("inputs", "metadata", "summary", "error", "value", "completed_at")
SHORT_ID_CHARS = 8
STYLES = {
    "active": "green",
    "waiting": "cyan",
    "suspended": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
WARNING_STYLE = "bold red"
ScopeFilter = Annotated[str | None, option("Only this scope: a scope's text or a session's id. Default: every scope.")]


def stack(
    path: JournalPath = None,
    /,
    scope: ScopeFilter = None,
    *,
    pending: Annotated[bool, switch("Add unfinished work, as a restart would find it.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Show the live frames as a tree: goals, statuses, budgets, calls, questions, deadlines."""
    with open_existing(path, tenant) as hf:
        forests = (
            (forest, hf.index.resume_actor(forest.scope).pending if pending else None)
            for forest in _load_forests(hf, scope)
        )
        if json:
            print_json({"scopes": [forest_to_json(forest, undone) for forest, undone in forests]})
            return
        shown = False
        for forest, undone in forests:
            forest.show(undone)
            shown = True
    if not shown:
        print_note("No frame is live." if scope is None else f"No frame is live in {Scope.of(scope).text}.")


def _load_forests(hf: Holdfast, scope: str | None) -> Iterator[FrameForest]:
    """Yield the live frames scope by scope, so that any number of scopes can be shown."""
    found: Iterable[tuple[str, list[FrameInfo]]]
    found = hf.index.stacks() if scope is None else [(Scope.of(scope).text, hf.index.stack(scope))]
    for stream, frames in found:
        if frames:
            yield build_forest(hf, stream, frames)


def build_forest(hf: Holdfast, scope: str, frames: Sequence[FrameInfo]) -> FrameForest:
    """Build the forest of a scope's frames, with their questions as of now."""
    questions: dict[str, QuestionInfo] = {}
    for frame in frames:
        if frame.question is not None:
            # The question may be answered and resumed in the meantime.
            with suppress(QuestionNotFound):
                questions[frame.question.id] = hf.index.question(frame.question.id)
    return FrameForest(scope, frames, questions, SystemClock().now_ms())


def forest_to_json(forest: FrameForest, pending: Sequence[PendingWork] | None) -> dict[str, Any]:
    """Convert the frames of a scope to JSON, with full ids. `erased` tells an erased goal from a missing one."""
    found: dict[str, Any] = {
        "scope": forest.scope,
        "frames": [_frame_to_json(forest, frame) for frame in forest.frames],
    }
    if pending is not None:
        found["pending"] = msgspec.to_builtins(pending)
    return found


def _frame_to_json(forest: FrameForest, frame: FrameInfo) -> dict[str, Any]:
    known = plain_fields(frame)
    for name in OMITTED_FIELDS:
        del known[name]
    question = frame.question and forest.questions.get(frame.question.id)
    known["erased"] = isinstance(frame.goal, Erased)
    known["tokens"] |= {"available": frame.tokens.available, "overdraft": frame.tokens.overdraft}
    known["left_ms"] = forest.remaining_ms(frame)
    known["question"] = None if question is None else plain_fields(question)
    return known


def shorten_ids(ids: Iterable[str]) -> dict[str, str]:
    """Shorten ids to as many last characters as tell them apart; the first ones only encode the time."""
    known, length = set(ids), SHORT_ID_CHARS
    while len({id[-length:] for id in known}) < len(known):
        length += 1
    return {id: f"…{id[-length:]}" for id in known}


def format_text(text: object, nothing: str) -> str:
    """Format text of a journal for one line; `nothing` stands for None."""
    if isinstance(text, Erased):
        return ERASED_TEXT
    return nothing if text is None else escape_text(text if isinstance(text, str) else encode_json(text))


class FrameForest:
    """The frames of one scope, shown together, parents before children."""

    def __init__(
        self, scope: str, frames: Sequence[FrameInfo], questions: Mapping[str, QuestionInfo], now_ms: int
    ) -> None:
        self.scope = scope
        self.frames = frames
        self.questions = questions
        self._now = now_ms
        self._known = {frame.id: frame for frame in frames}
        elsewhere = (child for frame in frames for child in frame.children_elsewhere)
        above = (frame.parent for frame in frames if frame.parent is not None)
        calls = (call.id for frame in frames for call in frame.calls)
        self._short = shorten_ids([*self._known, *elsewhere, *above, *calls])
        self._children: dict[str, list[FrameInfo]] = {}
        for frame in frames:
            self._children.setdefault(frame.parent or "", []).append(frame)

    def show(self, pending: Sequence[PendingWork] | None = None) -> None:
        """Print the tree."""
        out = console()
        if out.is_terminal:
            out.print(self._build_tree(pending))
        else:
            write_lines(f"{line}\n" for line in self._plain_lines(pending))

    def _build_tree(self, pending: Sequence[PendingWork] | None) -> Tree:
        root = Tree(Text(escape_text(self.scope), style="bold"), guide_style="dim")
        nodes: dict[str, Tree] = {}
        for frame in self.frames:
            above = nodes.get(frame.parent or "", root)
            nodes[frame.id] = above.add(Text("\n").join(self.frame_lines(frame)))
        if pending is not None:
            root.add(Text("\n").join(self._pending_lines(pending)))
        return root

    def _plain_lines(self, pending: Sequence[PendingWork] | None) -> Iterator[str]:
        yield escape_text(self.scope)
        depths: dict[str, int] = {}
        for frame in self.frames:
            depth = depths[frame.id] = depths.get(frame.parent or "", 0) + 1
            head, *rest = (line.plain for line in self.frame_lines(frame))
            yield f"{'  ' * depth}- {head}"
            yield from (f"{'  ' * depth}    {line}" for line in rest)
        if pending is not None:
            yield from (f"  {line.plain}" for line in self._pending_lines(pending))

    def _pending_lines(self, pending: Sequence[PendingWork]) -> Iterator[Text]:
        yield Text("pending:" if pending else "pending: nothing", style="bold")
        for work in pending:
            line = f"  {work.kind}: {escape_text(work.description)}"
            if work.if_interrupted is not None:
                line += f" (if interrupted: {work.if_interrupted})"
            yield Text(line, style="yellow" if work.unsafe_to_retry else "")

    def frame_lines(self, frame: FrameInfo) -> Iterator[Text]:
        """Yield the lines about a frame; the first one names it."""
        style = "dim italic" if isinstance(frame.goal, Erased) else "bold"
        goal = format_text(frame.goal, "(no goal)")
        status = (frame.status, STYLES.get(frame.status, ""))
        yield Text.assemble((goal, style), "  ", status, "  ", (self._short[frame.id], "dim"))
        if frame.parent is not None and frame.parent not in self._known:
            yield Text(f"above: {self._short[frame.parent]}, in another scope")
        yield _format_tokens(frame)
        late = self._format_deadline(frame)
        if late is not None:
            yield late
        attached = sum(handle.removed is None for handle in frame.handles)
        if attached or frame.results:
            yield Text(f"evidence: {attached} attached, {len(frame.results)} produced")
        for call in frame.calls:
            yield self._format_call(call)
        if frame.question is not None:
            yield self._format_question(frame.question)
        for child, scope in frame.children_elsewhere.items():
            yield Text(f"below: {self._short[child]} in {escape_text(scope)}")

    def _format_call(self, call: Call) -> Text:
        name = "" if call.name is None else f" {escape_text(call.name)}"
        line = f"open call: {call.kind}{name} (if interrupted: {call.if_interrupted})  "
        return Text.assemble((line, "magenta"), (self._short[call.id], "dim"))

    def _format_question(self, question: Question) -> Text:
        if question.within is not None:
            return Text(f"question: waits with {question.within}", style="yellow")
        info = self.questions.get(question.id)
        line = f"question: {question.id} ({question.kind}) {format_text(info and info.reason, '')}".rstrip()
        return Text(f"{line}; {question_state(question, self._now)}", style="yellow")

    def remaining_ms(self, frame: FrameInfo) -> int | None:
        """Return the time until the deadline, negative if it has passed; None without a deadline."""
        if frame.deadline is None or not frame.live:
            return None
        stands = self._clock_stopped_at(frame)
        return frame.deadline - (self._now if stands is None else stands)

    def _format_deadline(self, frame: FrameInfo) -> Text | None:
        left = self.remaining_ms(frame)
        if left is None:
            return None
        if left < 0:
            return Text(f"deadline: {format_duration(-left)} late", style=WARNING_STYLE)
        stands = "" if self._clock_stopped_at(frame) is None else ", its clock is stopped"
        return Text(f"deadline: {format_duration(left)} left{stands}")

    def _clock_stopped_at(self, frame: FrameInfo) -> int | None:
        """Return the time at which a frame's clock stopped: it is suspended, or all of its live children are."""
        if frame.question is not None:
            return frame.question.suspended_at
        below = self._children.get(frame.id, [])
        if frame.children_elsewhere or not below:
            return None
        times = [self._clock_stopped_at(child) for child in below]
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None


def question_state(question: Question | QuestionInfo, now_ms: int) -> str:
    """Describe whether a question is answered, and when it rings or expires."""
    answered = question.answered if isinstance(question, QuestionInfo) else question.answer is not None
    if answered:
        return "answered"
    if question.until is not None:
        return f"rings in {format_duration(question.until - now_ms)}" if question.until > now_ms else "rang"
    if question.expires_at is None:
        return "open"
    left = question.expires_at - now_ms
    return f"open, expires in {format_duration(left)}" if left >= 0 else f"expired {format_duration(-left)} ago"


def _format_tokens(frame: FrameInfo) -> Text:
    budget = frame.tokens
    granted = "no limit" if budget.granted is None else f"{budget.granted:,} granted"
    line = Text(f"tokens: {granted}, {budget.used:,} used, {budget.reserved:,} reserved, {budget.lent:,} lent")
    if budget.available is not None:
        line.append(f", {budget.available:,} available", style="" if budget.available else "yellow")
    if budget.overdraft:
        line.append(f", {budget.overdraft:,} overdrawn", style=WARNING_STYLE)
    if frame.question is not None and frame.question.released:
        line.append(f" ({frame.question.released:,} given back until it continues)")
    return line
