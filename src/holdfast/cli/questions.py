"""`holdfast questions`: what waits for somebody, and how to answer it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from holdfast.ambient import SystemClock
from holdfast.cli.main import OK
from holdfast.cli.opening import JournalPath, Json, Tenant, open_existing, spelled
from holdfast.cli.output import aligned, compact, console, emit, fields, note, printable, span, widest
from holdfast.cli.show import when
from holdfast.cli.tree import state_of, words
from holdfast.client.holdfast import Holdfast
from holdfast.records.events.envelope import Erased
from holdfast.records.resume import QuestionInfo

COLUMNS = ("question", "kind", "asked", "options", "goal", "scope", "since (UTC)", "state")


def questions(path: JournalPath = None, /, *, tenant: Tenant = None, json: Json = False) -> int:
    """Show the questions that wait for an answer."""
    with open_existing(path, tenant) as hf:
        found = [(question, goal_of(hf, question)) for question in hf.questions()]
    if json:
        emit({"questions": [_as_json(question, goal) for question, goal in found]})
        return OK
    if not found:
        note("No question is open.")
        return OK
    rows = [_cells(question, goal) for question, goal in found]
    out = console()
    if out.is_terminal:
        out.print(_for_people(rows))
    else:
        sys.stdout.writelines(_for_pipes(rows))
    waiting = [question.id for question, _ in found if not question.answered]
    if waiting:
        note(_how_to_answer(path, waiting[0] if len(waiting) == 1 else "QUESTION", tenant))
    return OK


def goal_of(hf: Holdfast, question: QuestionInfo) -> str | Erased | None:
    """What the frame that asks is for."""
    return hf.index.get_frame(question.frame).goal


def _as_json(question: QuestionInfo, goal: str | Erased | None) -> dict[str, Any]:
    erased = isinstance(question.reason, Erased)
    return {**fields(question), "erased": erased, "goal": None if isinstance(goal, Erased) else goal}


def _cells(question: QuestionInfo, goal: str | Erased | None) -> tuple[str, ...]:
    now = SystemClock().now_ms()
    asked = words(question.reason, "(no reason given)")
    if question.arguments:
        asked += f" {printable(compact(question.arguments))}"
    options = question.options if isinstance(question.options, list) else []
    offered = [f"{option} (recommended)" if option == question.recommended else str(option) for option in options]
    since = f"{when(question.suspended_at)}, {span(max(0, now - question.suspended_at))} ago"
    return (
        question.id,
        question.kind,
        asked,
        printable(" | ".join(offered)),
        words(goal, "(no goal)"),
        printable(question.scope),
        since,
        state_of(question, now),
    )


def _for_pipes(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A line for each question, and nothing cut."""
    every = [COLUMNS, *rows]
    return aligned(every, widest(every))


def _for_people(rows: list[tuple[str, ...]]) -> Table:
    """What belongs together is in one cell, so that a narrow terminal has room for what is asked."""
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


def _how_to_answer(path: str | None, question: str, tenant: str | None) -> str:
    command = spelled("answer", str(path), question, "--approve", tenant=tenant)
    return f"Answer with: {command} (or --deny, --payload JSON, --args JSON)"
