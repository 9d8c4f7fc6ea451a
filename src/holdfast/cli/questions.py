"""`holdfast questions` and `holdfast answer`: list the open questions, and answer one.

A link token is a secret: it is read from standard input or a prompt, never from an argument, which every user of
the machine could see in the list of processes.
"""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from rich.table import Table
from rich.text import Text

from holdfast.cli.log import format_time
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
from holdfast.cli.output import (
    console,
    encode_json,
    escape_text,
    format_duration,
    plain_fields,
    print_json,
    print_line,
    print_note,
    print_rows,
)
from holdfast.cli.stack import format_text, question_state
from holdfast.client.holdfast import Holdfast
from holdfast.errors import InvalidValue, QuestionNotFound, Refused
from holdfast.records.events.envelope import Erased
from holdfast.records.ids import ULID_CHARS
from holdfast.records.recovery import QuestionInfo
from holdfast.system import SystemClock

QUESTION_COLUMNS = ("question", "kind", "asked", "options", "goal", "scope", "since (UTC)", "state")
MIN_ID_CHARS = 6
"""The fewest characters of an id that are accepted; fewer could match by chance."""


def questions(path: JournalPath = None, /, *, tenant: Tenant = None, json: Json = False) -> None:
    """Show the questions that wait for an answer."""
    with open_existing(path, tenant) as hf:
        found = [(question, load_goal(hf, question)) for question in hf.questions()]
    if json:
        print_json({"questions": [_question_to_json(question, goal) for question, goal in found]})
        return
    if not found:
        print_note("No question is open.")
        return
    rows = [_format_question(question, goal) for question, goal in found]
    out = console()
    if out.is_terminal:
        out.print(_build_table(rows))
    else:
        print_rows(QUESTION_COLUMNS, rows)
    waiting = [question.id for question, _ in found if not question.answered]
    if waiting:
        question = waiting[0] if len(waiting) == 1 else "QUESTION"
        command = format_command("answer", str(path), question, "--approve", tenant=tenant)
        print_note(f"Answer with: {command} (or --deny, --payload JSON, --args JSON)")


def load_goal(hf: Holdfast, question: QuestionInfo) -> str | Erased | None:
    """Return the goal of the frame that asks."""
    return hf.index.get_frame(question.frame).goal


def _question_to_json(question: QuestionInfo, goal: str | Erased | None) -> dict[str, Any]:
    erased = isinstance(question.reason, Erased)
    return {**plain_fields(question), "erased": erased, "goal": None if isinstance(goal, Erased) else goal}


def _format_question(question: QuestionInfo, goal: str | Erased | None) -> tuple[str, ...]:
    now = SystemClock().now_ms()
    asked = format_text(question.reason, "(no reason given)")
    if question.arguments:
        asked += f" {escape_text(encode_json(question.arguments))}"
    options = question.options if isinstance(question.options, list) else []
    offered = [f"{option} (recommended)" if option == question.recommended else str(option) for option in options]
    since = f"{format_time(question.suspended_at)}, {format_duration(max(0, now - question.suspended_at))} ago"
    return (
        question.id,
        question.kind,
        asked,
        escape_text(" | ".join(offered)),
        format_text(goal, "(no goal)"),
        escape_text(question.scope),
        since,
        question_state(question, now),
    )


def _build_table(rows: list[tuple[str, ...]]) -> Table:
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
    """Answer a question by its id, or with its link token."""
    journal, asked = _resolve_question(path, question, token)
    said = _parse_options(approve, deny, payload, args, note, by)
    existing_path(journal)
    secret = _read_token() if token else None
    with open_existing(journal, tenant) as hf:
        done = _answer_with_token(hf, secret, said) if secret is not None else _answer_by_id(hf, asked, said)
    if json:
        print_json(done)
    else:
        _print_report(done)


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


def _answer_by_id(hf: Holdfast, given: str, said: dict[str, Any]) -> dict[str, Any]:
    info = hf.index.question(_complete_id(hf, given))
    id = hf.answer(info.id, **said)
    return _make_report(id, said, info, load_goal(hf, info), repeated=info.answered)


def _answer_with_token(hf: Holdfast, token: str, said: dict[str, Any]) -> dict[str, Any]:
    id = hf.answer(token=token, **said)
    # The owner may have resumed by now, and then the question is gone.
    with suppress(QuestionNotFound):
        info = hf.index.question(id)
        return _make_report(id, said, info, load_goal(hf, info))
    return _make_report(id, said)


def _make_report(
    id: str,
    said: dict[str, Any],
    info: QuestionInfo | None = None,
    goal: str | Erased | None = None,
    *,
    repeated: bool = False,
) -> dict[str, Any]:
    return {
        "question": id,
        "approved": said["approve"],
        "repeated": repeated,
        "frame": info and info.frame,
        "scope": info and info.scope,
        "goal": None if isinstance(goal, Erased) else goal,
    }


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
    found = [
        question.id for question in hf.questions() if question.id.startswith(wanted) or question.id.endswith(wanted)
    ]
    if not found:
        raise QuestionNotFound(f"No open question's id begins or ends with {wanted}. See `holdfast questions`.")
    if len(found) > 1:
        raise Refused(f"{wanted} matches {len(found)} questions: {', '.join(found[:4])}. Give more characters.")
    return found[0]


def _print_report(done: dict[str, Any]) -> None:
    how = {True: "approved", False: "denied", None: "answered"}[done["approved"]]
    if done["repeated"]:
        print_line(f"Question {done['question']} already had this answer ({how}); nothing was changed.")
    else:
        print_line(f"Question {done['question']}: {how}.", "green")
    if done["frame"] is None:
        return
    goal = "Its frame" if done["goal"] is None else f"'{done['goal']}'"
    print_line(f"{goal} in {done['scope']} continues when its owner runs the same code again.")
