"""`holdfast messages` and `holdfast fork`: read a conversation page by page, and fork a new thread from it.

Messages were written by users, models and tools: every piece of text is escaped before it is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.log import when
from holdfast.cli.main import OK
from holdfast.cli.open import JournalPathFirst, Json, Tenant, journal_and, open_existing, spelled, switch
from holdfast.cli.output import aligned, brief, compact, console, emit, fields, note, printable, say, whole, widest
from holdfast.cli.sessions import Thread, check_limit, find_session
from holdfast.cli.stack import short_ids
from holdfast.client.session import Session
from holdfast.records.messages import Message, Part, ToolCallRequest, ToolCallResult
from holdfast.records.scope import MAIN_THREAD

NEWEST = 20
COLUMNS = ("message", "time (UTC)", "role", "tokens", "marks", "text")
STYLES = {"user": "bold", "assistant": "green", "tool": "cyan", "system": "yellow", "developer": "yellow"}
Id = Annotated[str | None, Parameter(name="SESSION", show_default=False, help="The session's id.")]


def messages(
    path: JournalPathFirst,
    session: Id = None,
    /,
    *,
    thread: Thread = None,
    limit: Annotated[int, Parameter(help="So many: the newest, or those next to --before or --after.")] = NEWEST,
    before: Annotated[str | None, Parameter(show_default=False, help="Those before the message with this id.")] = None,
    after: Annotated[str | None, Parameter(show_default=False, help="Those after the message with this id.")] = None,
    full: Annotated[bool, switch("Show whole texts.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show the messages of a conversation, oldest first."""
    check_limit(limit)
    journal, id = journal_and(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        found = line.messages(limit, before=_whole(before), after=_whole(after))
        if json:
            said = [message_json(message) for message in found]
            emit({"session": line.id, "thread": line.thread, "messages": said})
            return OK
        more = _further(line, found, forwards=after is not None)
    if not found:
        note("Nothing was said." if before is None and after is None else "There is nothing further.")
        return OK
    newest = before is None and (after is None or more is None)
    _print(Page(found, newest=newest, full=full), full=full)
    if more is not None:
        note(_next_page(journal, line, more, tenant))
    return OK


def fork(
    path: JournalPathFirst,
    session: Id = None,
    /,
    *,
    at: Annotated[
        str | None, Parameter(show_default=False, help="After the message with this id; the newest if not given.")
    ] = None,
    as_: Annotated[
        str | None, Parameter(name="--as", show_default=False, help="The new thread's name; made up if not given.")
    ] = None,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Fork a new thread after a message. Nothing is copied, and the old thread stays as it is."""
    journal, id = journal_and(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        branch = line.fork(_whole(at), thread=as_)
        newest = branch.messages(1)
        count = len(branch)
    point = newest[0].id if newest else None
    if json:
        emit({"session": id, "thread": branch.thread, "from": line.thread, "at": point, "messages": count})
        return OK
    where = "at its beginning" if point is None else f"after message {point}"
    say(f"Thread {branch.thread!r} of session {id!r} goes on {where} of {line.thread!r}: {count:,} messages.", "green")
    say(f"Read it with: {spelled('messages', journal, id, '--thread', branch.thread, tenant=tenant)}")
    say(f"Go on with: hf.session({id!r}, thread={branch.thread!r})")
    return OK


def _whole(id: str | None) -> str | None:
    return None if id is None else id.strip().upper()


def _further(line: Session, found: list[Message], *, forwards: bool) -> tuple[str, str] | None:
    """Return the option and message id that lead to the next page, if there is one."""
    if not found:
        return None
    if forwards:
        return ("--after", found[-1].id) if line.messages(1, after=found[-1]) else None
    return ("--before", found[0].id) if line.messages(1, before=found[0]) else None


def _next_page(journal: str, line: Session, more: tuple[str, str], tenant: str | None) -> str:
    which = () if line.thread == MAIN_THREAD else ("--thread", line.thread)
    said = "Later" if more[0] == "--after" else "Earlier"
    return f"{said} messages: {spelled('messages', journal, line.id, *which, *more, tenant=tenant)}"


def message_json(message: Message) -> dict[str, Any]:
    """Convert a message to JSON, with nothing shortened."""
    known = fields(message)
    known["tool_calls"] = [fields(call) for call in message.tool_calls]
    known["tool_results"] = [fields(result) for result in message.tool_results]
    return known


def _print(page: Page, *, full: bool) -> None:
    out = console()
    if out.is_terminal:
        for shown in _blocks(page):
            out.print(shown)
    else:
        sys.stdout.writelines(_plain_blocks(page) if full else _plain_rows(page))
        sys.stdout.flush()


def _plain_rows(page: Page) -> Iterator[str]:
    rows = [
        (
            message.id,
            when(message.timestamp),
            role_of(message),
            "" if message.tokens is None else f"{message.tokens:,}",
            ", ".join(marks(message)),
            "  ".join(piece.text for piece in page.pieces(message)),
        )
        for message in page.messages
    ]
    widths = [*widest([COLUMNS[:-1], *(row[:-1] for row in rows)]), 0]
    return aligned([COLUMNS, *rows], widths, (3,))


def _plain_blocks(page: Page) -> Iterator[str]:
    for message in page.messages:
        yield f"{_head(message).plain}\n"
        for piece in page.pieces(message):
            yield from (f"  {line}".rstrip() + "\n" for line in piece.text.split("\n"))
        yield "\n"


def _blocks(page: Page) -> Iterator[Any]:
    for message in page.messages:
        yield _head(message)
        yield Padding(Text("\n").join(Text(*piece) for piece in page.pieces(message)), (0, 0, 1, 2))


def _head(message: Message) -> Text:
    return Text.assemble(
        (role_of(message), STYLES.get(message.role, "")),
        (f"  {', '.join(marks(message))}".rstrip(), "yellow"),
        (f"{_tokens(message)}  {when(message.timestamp)}  {message.id}", "dim"),
    )


def _tokens(message: Message) -> str:
    return "" if message.tokens is None else f"  {message.tokens:,} tokens"


SHORT = 160
NAME = 24
ERASED = "(erased)"


class Piece(NamedTuple):
    """A piece of text and its style."""

    text: str
    style: str = ""


class Page:
    """Messages shown together, so that calls and results can refer to each other."""

    def __init__(self, messages: Sequence[Message], *, newest: bool, full: bool) -> None:
        self.messages = messages
        self._full = full
        self._names = {call.id: call.name for message in messages for call in message.tool_calls}
        answered = {result.tool_call_id for message in messages for result in message.tool_results}
        self._labels = short_ids([*self._names, *answered])
        # A call may be answered on a later page; only at the end of the thread is it certain to be open.
        self._waiting = self._names.keys() - answered if newest else frozenset()

    def pieces(self, message: Message) -> Iterator[Piece]:
        """Yield the pieces of a message: one line each if shortened, else with all their lines."""
        if message.erased and not message.tool_calls and not message.tool_results:
            yield Piece(ERASED, "dim italic")
        elif message.content:
            yield Piece(self._shown(content_text(message.content)), "")
        for call in message.tool_calls:
            yield self._call(call, erased=message.erased)
        for result in message.tool_results:
            yield self._result(result, erased=message.erased)

    def _call(self, call: ToolCallRequest, *, erased: bool) -> Piece:
        said = ERASED if erased else f"{printable(call.name)}({self._shown(call.arguments)})"
        waits = "  no result yet" if call.id in self._waiting else ""
        return Piece(f"→ {said}  {self._labels[call.id]}{waits}", "magenta")

    def _result(self, result: ToolCallResult, *, erased: bool) -> Piece:
        name = self._names.get(result.tool_call_id)
        whose = "" if name is None or erased else f"{printable(name)}  "
        how = "interrupted: " if result.interrupted else "error: " if result.is_error else ""
        said = ERASED if erased else self._shown(result_text(result.result))
        style = "red" if result.is_error or result.interrupted else "cyan"
        return Piece(f"← {whose}{self._labels[result.tool_call_id]}  {how}{said}", style)

    def _shown(self, text: str) -> str:
        return whole(text) if self._full else printable(brief(text, SHORT))


def marks(message: Message) -> list[str]:
    """Return the marks of a message, such as `pinned`."""
    found = [name for name in ("pinned", "partial", "synthetic", "erased") if getattr(message, name)]
    return found + ["interrupted"] * any(result.interrupted for result in message.tool_results)


def role_of(message: Message) -> str:
    """Return a message's role and the speaker's name, if any."""
    return message.role if not message.name else f"{message.role} ({printable(brief(message.name, NAME))})"


def content_text(content: str | Sequence[Part]) -> str:
    """Return content as text, with a placeholder for every image, file and other part."""
    if isinstance(content, str):
        return content
    return " ".join(text for part in content if (text := _part_text(part)))


def result_text(result: Any) -> str:
    """Return a tool's result as text: text, parts, or plain data as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        return content_text(result)
    return compact(result)


def _part_text(part: Mapping[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind in ("text", "refusal") and isinstance(text, str):
        return text if kind == "text" else f"[refusal] {text}"
    if kind == "call":
        return ""
    named = next((part[name] for name in ("name", "media_type", "url", "file_id") if part.get(name)), None)
    item = part.get("item")
    if named is None and isinstance(item, dict):
        named = item.get("type")
    return f"[{kind}]" if not isinstance(named, str) or named == kind else f"[{kind}: {brief(named, SHORT)}]"
