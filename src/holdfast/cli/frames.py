"""`holdfast stack`, `questions` and `answer`: show the live frames as a tree, list open questions, and answer one.

A terminal and a pipe get the same lines; only guides and colours differ. Goals and questions are untrusted text:
all of it is escaped before it is shown. A link token is a secret: it is read from standard input or a prompt, never
from an argument, which every user of the machine could see in the list of processes.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.cli import output
from holdfast.cli.open import (
    PATH_HELP,
    URL_VARIABLE,
    JournalPath,
    Json,
    Tenant,
    existing_path,
    format_command,
    open_existing,
    option,
    require_path,
    resolve_arguments,
    switch,
)
from holdfast.client.holdfast import Holdfast
from holdfast.errors import InvalidValue, QuestionNotFound, Refused
from holdfast.records.events.envelope import Erased
from holdfast.records.frames import Question
from holdfast.records.ids import ULID_CHARS
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
    with open_existing(path, tenant) as hf:
        # Scope by scope, so that any number of scopes can be shown.
        found = hf.index.stacks() if scope is None else [(Scope.of(scope).text, hf.index.stack(scope))]
        forests = (
            (FrameForest(hf, stream, frames), hf.index.resume_actor(stream).pending if pending else None)
            for stream, frames in found
            if frames
        )
        if json:
            output.print_json({"scopes": [forest_to_json(*one) for one in forests]})
            return
        shown = False
        for forest, undone in forests:
            forest.show(undone)
            shown = True
    if not shown:
        output.print_note("No frame is live." if scope is None else f"No frame is live in {Scope.of(scope).text}.")


def forest_to_json(forest: FrameForest, pending: Sequence[PendingWork] | None) -> dict[str, Any]:
    """Convert the frames of a scope to JSON, with full ids. `erased` tells an erased goal from a missing one."""
    more = {} if pending is None else {"pending": msgspec.to_builtins(pending)}
    return {"scope": forest.scope, "frames": [_frame_to_json(forest, frame) for frame in forest.frames], **more}


def _frame_to_json(forest: FrameForest, frame: FrameInfo) -> dict[str, Any]:
    known = output.plain_fields(frame, "goal")
    for name in OMITTED_FIELDS:
        del known[name]
    question = frame.question and forest.questions.get(frame.question.id)
    known["tokens"] |= {"available": frame.tokens.available, "overdraft": frame.tokens.overdraft}
    known["left_ms"] = forest.remaining_ms(frame)
    known["question"] = None if question is None else output.plain_fields(question)
    return known


def shorten_ids(ids: Iterable[str]) -> dict[str, str]:
    """Shorten ids to as many last characters as tell them apart; the first ones only encode the time."""
    known, length = set(ids), SHORT_ID_CHARS
    while len({id[-length:] for id in known}) < len(known):
        length += 1
    return {id: f"…{id[-length:]}" for id in known}


class FrameForest:
    """The frames of one scope with their questions as of now, shown together, parents before children."""

    def __init__(self, hf: Holdfast, scope: str, frames: Sequence[FrameInfo]) -> None:
        self.scope = scope
        self.frames = frames
        self.questions: dict[str, QuestionInfo] = {}
        for id in (frame.question.id for frame in frames if frame.question is not None):
            # The question may be answered and resumed in the meantime.
            with suppress(QuestionNotFound):
                self.questions[id] = hf.index.question(id)
        self._now = SystemClock().now_ms()
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
        root = Tree(Text(output.escape_text(self.scope), style="bold"), guide_style="dim")
        nodes: dict[str, Tree] = {}
        for frame in self.frames:
            above = nodes.get(frame.parent or "", root)
            nodes[frame.id] = above.add(Text("\n").join(self.frame_lines(frame)))
        below = [] if pending is None else [Text("pending:" if pending else "pending: nothing", style="bold")]
        for work in pending or ():
            how = "" if work.if_interrupted is None else f" (if interrupted: {work.if_interrupted})"
            style = "yellow" if work.unsafe_to_retry else ""
            below.append(Text(f"  {work.kind}: {output.escape_text(work.description)}{how}", style=style))
        output.print_tree(root, below)

    def frame_lines(self, frame: FrameInfo) -> Iterator[Text]:
        """Yield the lines about a frame; the first one names it."""
        style = "dim italic" if isinstance(frame.goal, Erased) else "bold"
        goal = output.format_text(frame.goal, "(no goal)")
        status = (frame.status, STYLES.get(frame.status, ""))
        yield Text.assemble((goal, style), "  ", status, "  ", (self._short[frame.id], "dim"))
        if frame.parent is not None and frame.parent not in self._known:
            yield Text(f"above: {self._short[frame.parent]}, in another scope")
        yield _format_tokens(frame)
        left = self.remaining_ms(frame)
        if left is not None and left < 0:
            yield Text(f"deadline: {output.format_duration(-left)} late", style=WARNING_STYLE)
        elif left is not None:
            stands = "" if self._clock_stopped_at(frame) is None else ", its clock is stopped"
            yield Text(f"deadline: {output.format_duration(left)} left{stands}")
        attached = sum(handle.removed is None for handle in frame.handles)
        if attached or frame.results:
            yield Text(f"evidence: {attached} attached, {len(frame.results)} produced")
        for call in frame.calls:
            name = "" if call.name is None else f" {output.escape_text(call.name)}"
            line = f"open call: {call.kind}{name} (if interrupted: {call.if_interrupted})  "
            yield Text.assemble((line, "magenta"), (self._short[call.id], "dim"))
        if frame.question is not None:
            yield self._format_question(frame.question)
        for child, scope in frame.children_elsewhere.items():
            yield Text(f"below: {self._short[child]} in {output.escape_text(scope)}")

    def _format_question(self, question: Question) -> Text:
        if question.within is not None:
            return Text(f"question: waits with {question.within}", style="yellow")
        info = self.questions.get(question.id)
        line = f"question: {question.id} ({question.kind}) {output.format_text(info and info.reason, '')}".rstrip()
        return Text(f"{line}; {question_state(question, self._now)}", style="yellow")

    def remaining_ms(self, frame: FrameInfo) -> int | None:
        """Return the time until the deadline, negative if it has passed; None without a deadline."""
        if frame.deadline is None or not frame.live:
            return None
        stands = self._clock_stopped_at(frame)
        return frame.deadline - (self._now if stands is None else stands)

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
        return f"rings in {output.format_duration(question.until - now_ms)}" if question.until > now_ms else "rang"
    if question.expires_at is None:
        return "open"
    left = question.expires_at - now_ms
    span = output.format_duration(abs(left))
    return f"open, expires in {span}" if left >= 0 else f"expired {span} ago"


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


QUESTION_COLUMNS = ("question", "kind", "asked", "options", "goal", "scope", "since (UTC)", "state")
MIN_ID_CHARS = 6
"""The fewest characters of an id that are accepted; fewer could match by chance."""


def questions(path: JournalPath = None, /, *, tenant: Tenant = None, json: Json = False) -> None:
    with open_existing(path, tenant) as hf:
        found = [(question, hf.index.get_frame(question.frame).goal) for question in hf.questions()]
    if json:
        known = [{**output.plain_fields(one, "reason"), "goal": output.to_plain(goal)} for one, goal in found]
        output.print_json({"questions": known})
        return
    if not found:
        output.print_note("No question is open.")
        return
    rows = [_format_question(question, goal) for question, goal in found]
    output.print_table(QUESTION_COLUMNS, rows, _build_table)
    waiting = [question.id for question, _ in found if not question.answered]
    if waiting:
        question = waiting[0] if len(waiting) == 1 else "QUESTION"
        command = format_command("answer", str(path), question, "--approve", tenant=tenant)
        output.print_note(f"Answer with: {command} (or --deny, --payload JSON, --args JSON)")


def _format_question(question: QuestionInfo, goal: str | Erased | None) -> tuple[str, ...]:
    now = SystemClock().now_ms()
    asked = output.format_text(question.reason, "(no reason given)")
    if question.arguments:
        asked += f" {output.escape_text(output.encode_json(question.arguments))}"
    options = question.options if isinstance(question.options, list) else []
    offered = [f"{option} (recommended)" if option == question.recommended else str(option) for option in options]
    waited = output.format_duration(max(0, now - question.suspended_at))
    return (
        question.id,
        question.kind,
        asked,
        output.escape_text(" | ".join(offered)),
        output.format_text(goal, "(no goal)"),
        output.escape_text(question.scope),
        f"{output.format_time(question.suspended_at)}, {waited} ago",
        question_state(question, now),
    )


def _build_table(rows: Iterable[tuple[str, ...]]) -> Table:
    """Build a table for a terminal: related values share a cell, so that the question has room."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("question", no_wrap=True)
    table.add_column("asked", overflow="fold", ratio=3)
    table.add_column("for", overflow="fold", ratio=2)
    for id, kind, asked, options, goal, scope, since, state in rows:
        style = "green" if state == "answered" else "yellow"
        day, _, ago = since.partition(", ")
        table.add_row(
            Text.assemble((id, "bold"), f"\n{kind}, ", (state, style), f"\n{day}\n{ago}"),
            Text.assemble(asked, (f"\n{options}" if options else "", "cyan")),
            Text.assemble(goal, (f"\n{scope}", "dim")),
        )
    return table


def answer(
    path: Annotated[str | None, option(PATH_HELP, name="PATH")] = None,
    question: Annotated[
        str | None,
        option(
            f"The question's id, or at least {MIN_ID_CHARS} of its first or last characters. Not with --token.",
            name="QUESTION",
        ),
    ] = None,
    /,
    *,
    approve: Annotated[bool, switch("Approve.")] = False,
    deny: Annotated[bool, switch("Deny.")] = False,
    payload: Annotated[str | None, option("The answer, as JSON.")] = None,
    args: Annotated[str | None, option("With --approve: run with these arguments instead, as JSON.")] = None,
    note: Annotated[str | None, option("The reason, as text.")] = None,
    by: Annotated[str | None, option("The name of the person who answers.")] = None,
    token: Annotated[bool, switch("Answer with a link token, read from the terminal or standard input.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    journal, asked = _resolve_question(path, question, token)
    said = _parse_options(approve, deny, payload, args, note, by)
    existing_path(journal)
    secret = _read_token() if token else None
    with open_existing(journal, tenant) as hf:
        info = hf.index.question(_complete_id(hf, asked)) if secret is None else None
        repeated = info is not None and info.answered
        id = hf.answer(token=secret, **said) if info is None else hf.answer(info.id, **said)
        # The owner may have resumed by now, and then the question is gone.
        with suppress(QuestionNotFound):
            info = info or hf.index.question(id)
        goal = None if info is None else hf.index.get_frame(info.frame).goal
    if json:
        where = {"frame": info and info.frame, "scope": info and info.scope, "goal": output.to_plain(goal)}
        output.print_json({"question": id, "approved": said["approve"], "repeated": repeated, **where})
        return
    how = {True: "approved", False: "denied", None: "answered"}[said["approve"]]
    if repeated:
        output.print_line(f"Question {id} already had this answer ({how}); nothing was changed.")
    else:
        output.print_line(f"Question {id}: {how}.", "green")
    if info is not None:
        whose = f"'{goal}'" if isinstance(goal, str) else "Its frame"
        output.print_line(f"{whose} in {info.scope} continues when its owner runs the same code again.")


def _resolve_question(path: str | None, question: str | None, token: bool) -> tuple[str, str]:
    """Return the journal's path and, unless a token is used, the question's id."""
    if token:
        if question is not None:
            raise InvalidValue("A token names its question. Give QUESTION or --token, not both.")
        return require_path(path or os.environ.get(URL_VARIABLE)), ""
    if path is None:
        raise InvalidValue(
            "No question is named. Give the journal's path and a question's id; see `holdfast questions`."
        )
    return resolve_arguments(path, question, "the question's id")


def _parse_options(
    approve: bool, deny: bool, payload: str | None, args: str | None, note: str | None, by: str | None
) -> dict[str, Any]:
    if approve and deny:
        raise InvalidValue("--approve and --deny contradict each other. Give one of them.")
    if args is not None and not approve:
        raise InvalidValue("--args replaces the arguments that are approved. Add --approve.")
    if not (approve or deny) and payload is None:
        raise InvalidValue("The answer is missing. Give --approve, --deny or --payload.")
    return {
        "approve": True if approve else False if deny else None,
        "payload": _parse_json(payload, "--payload"),
        "args": _parse_json(args, "--args"),
        "note": note,
        "by": by,
    }


def _parse_json(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue(
            f"{option} is not JSON: {error}. A text needs quotes of its own, as in {option} '\"yes\"'."
        ) from None


def _read_token() -> str:
    """Read a token from a hidden prompt, or from a pipe or file."""
    given = ""
    if sys.stdin is not None:  # The parent process closed it.
        with suppress(EOFError, UnicodeDecodeError):
            given = getpass.getpass("Token: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not given.strip():
        raise InvalidValue("The token is missing. Type it when asked, or pass it on standard input.")
    return given.strip()


def _complete_id(hf: Holdfast, given: str) -> str:
    """Return the full id of an open question, given its first or last characters."""
    wanted = given.strip().strip("…").upper()
    if len(wanted) == ULID_CHARS:
        return wanted
    if not MIN_ID_CHARS <= len(wanted) < ULID_CHARS:
        raise InvalidValue(
            f"A question's id has {ULID_CHARS} characters; give all, or at least {MIN_ID_CHARS} of the first or last. "
            "See `holdfast questions`; a link token goes with --token."
        )
    found = [one.id for one in hf.questions() if one.id.startswith(wanted) or one.id.endswith(wanted)]
    if not found:
        raise QuestionNotFound(f"No open question's id begins or ends with {wanted}. See `holdfast questions`.")
    if len(found) > 1:
        raise Refused(f"{wanted} matches {len(found)} questions: {', '.join(found[:4])}. Give more characters.")
    return found[0]
