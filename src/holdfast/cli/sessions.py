"""`holdfast sessions`, `messages` and `fork`: list sessions, read one page by page, and fork a new thread from it.

Titles and messages were written by users, models and tools: every piece of text is escaped before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.frames import shorten_ids
from holdfast.cli.open import (
    JournalPath,
    Json,
    LeadingPath,
    Tenant,
    format_command,
    open_existing,
    option,
    resolve_arguments,
    switch,
)
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.errors import InvalidValue, SessionNotFound
from holdfast.flow.sessions.sessions import ORDERS, STATUSES
from holdfast.records.events.envelope import ERASED, Erased
from holdfast.records.messages import Message, Part, ToolCallResult
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import SessionInfo
from holdfast.records.usage import NANO_USD
from holdfast.system import SystemClock

COLUMNS = ("session", "title", "status", "model", "messages", "tokens", "cost (USD)", "last active")
NUMBERS = (4, 5, 6)
TITLE_CHARS = 60
MIN_ID_WIDTH = 20
STYLES = {"open": "green", "closing": "yellow", "ended": "dim", "closed": "dim"}
SessionListing = tuple[SessionInfo, str | Erased | None]
"""A session, and its first words if it has no title."""

Thread = Annotated[str | None, option(f"The thread of the session; {MAIN_THREAD!r} if not given.")]


def sessions(
    path: JournalPath = None,
    /,
    *,
    user: Annotated[str | None, option("Only sessions of this user.")] = None,
    title: Annotated[str | None, option("Only sessions with this text in their title.")] = None,
    status: Annotated[str | None, option(f"Only sessions with this status: {', '.join(STATUSES)}.")] = None,
    order: Annotated[
        str, Parameter(help=f"Sort by {', '.join(ORDERS)}: latest or most expensive first, or by name.")
    ] = ORDERS[0],
    limit: Annotated[int | None, option("Show the first N sessions.")] = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    with open_existing(path, tenant) as hf:
        infos = hf.sessions(user=user, title=title, status=status, order=order, limit=limit)
        found = ((info, None if info.title else _load_first_words(hf, info)) for info in infos)
        if json:
            output.print_json({"sessions": [_session_to_json(*one) for one in found]})
            return
        shown = output.print_pages(COLUMNS, found, _format_session, _build_table, NUMBERS)
    if shown is None:
        output.print_note("No session matches." if user or title or status else "There are no sessions yet.")
    else:
        output.print_note(f"Read one with: {format_command('messages', str(path), shown[0][0].id, tenant=tenant)}")


def check_limit(limit: int | None) -> None:
    """Refuse a limit below 1."""
    if limit is not None and limit < 1:
        raise InvalidValue(f"--limit must be 1 or more, not {limit}.")


def find_session(hf: Holdfast, id: str, thread: str | None) -> Session:
    """Return a thread of an existing session; if it is missing, the error names the threads that exist."""
    wanted = MAIN_THREAD if thread is None else thread
    try:
        return hf.session(id, thread=wanted, create=False)
    except SessionNotFound:
        known = thread_names(hf, id)
    if not known:
        raise SessionNotFound(f"There is no session {id!r}. See `holdfast sessions`; check the id and --tenant.")
    others = ", ".join(map(repr, known[:8])) + (", …" if len(known) > 8 else "")
    raise SessionNotFound(f"Session {id!r} has no thread {wanted!r}. Give one of its threads with --thread: {others}.")


def thread_names(hf: Holdfast, id: str) -> list[str]:
    """Return the names of all threads a session ever had, in order; none if there is no such session."""
    return [event.facts.thread for event in hf.journal.events(Scope.session(id), types=("thread.added",))]


def _load_first_words(hf: Holdfast, info: SessionInfo) -> str | Erased | None:
    """Return the beginning of the first user message; None if there is none."""
    if not info.messages:
        return None
    try:
        session = hf.session(info.id, create=False)
    except SessionNotFound:
        session = hf.session(info.id, thread=thread_names(hf, info.id)[0], create=False)
    said = next((message for message in session if message.role == "user"), None)
    if said is None:
        return None
    return ERASED if said.erased else output.shorten_text(said.text, TITLE_CHARS) or None


def _session_to_json(info: SessionInfo, words: str | Erased | None) -> dict[str, Any]:
    """Convert a session to JSON with exact times and numbers. `first_words` is set if there is no title."""
    idle, first = max(0, SystemClock().now_ms() - info.active_at), output.to_plain(words)
    return {**output.plain_fields(info), "first_words": first, "tokens": info.usage.spent, "idle_ms": idle}


def _format_session(one: SessionListing) -> tuple[str, ...]:
    info, words = one
    cost = info.usage.cost
    return (
        output.escape_text(info.id),
        output.format_text(output.shorten_text(info.title, TITLE_CHARS) if info.title else words, ""),
        info.status,
        output.escape_text(info.model or ""),
        f"{info.messages:,}",
        f"{info.usage.spent:,}",
        f"{cost / NANO_USD:,.4f}{'' if info.usage.cost_known else '+'}" if cost else "",
        f"{output.format_duration(max(0, SystemClock().now_ms() - info.active_at))} ago",
    )


def _build_table(page: list[SessionListing], rows: output.Rows, widths: list[int], first: bool) -> Table:
    """Build a table for a terminal: related values share a cell, so that ids, which users retype, stay whole."""
    pairs = []
    for (info, _), (id, title, status, model, messages, tokens, cost, active) in zip(page, rows, strict=True):
        used = f"{messages} messages, {tokens} tokens" + (f", {cost} USD" if cost else "")
        name = Text.assemble((id, "bold"), "\n", (status, STYLES.get(status, "")), (f"  {model}".rstrip(), "dim"))
        about = Text.assemble((title, "" if info.title else "italic"), "\n", (f"{used}, {active}", "dim"))
        pairs.append((name, about))
    return output.pair_table(pairs, max(widths[0], MIN_ID_WIDTH))


MESSAGE_COLUMNS = ("message", "time (UTC)", "role", "tokens", "marks", "text")
SHORT_CHARS = 160
NAME_CHARS = 24
ROLE_STYLES = {"user": "bold", "assistant": "green", "tool": "cyan", "system": "yellow", "developer": "yellow"}
SessionArgument = Annotated[str | None, option("The session's id.", name="SESSION")]


def messages(
    path: LeadingPath,
    session: SessionArgument = None,
    /,
    *,
    thread: Thread = None,
    limit: Annotated[
        int, Parameter(help="Show at most N messages: the newest, or those next to --before or --after.")
    ] = 20,
    before: Annotated[str | None, option("Only messages before this message id.")] = None,
    after: Annotated[str | None, option("Only messages after this message id.")] = None,
    full: Annotated[bool, switch("Show full texts.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    journal, id = resolve_arguments(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        found = line.messages(limit, before=_normalise_id(before), after=_normalise_id(after))
        if json:
            said = [message_to_json(message) for message in found]
            output.print_json({"session": line.id, "thread": line.thread, "messages": said})
            return
        more = _next_page_option(line, found, forwards=after is not None)
    if not found:
        output.print_note(
            "There are no messages." if before is None and after is None else "There are no more messages."
        )
        return
    newest = before is None and (after is None or more is None)
    _print_page(MessagePage(found, newest=newest, full=full), full=full)
    if more is not None:
        which = () if line.thread == MAIN_THREAD else ("--thread", line.thread)
        side = "Later" if more[0] == "--after" else "Earlier"
        output.print_note(
            f"{side} messages: {format_command('messages', journal, line.id, *which, *more, tenant=tenant)}"
        )


def fork(
    path: LeadingPath,
    session: SessionArgument = None,
    /,
    *,
    at: Annotated[str | None, option("Fork after this message id; the newest if not given.")] = None,
    as_: Annotated[str | None, option("The new thread's name; generated if not given.", name="--as")] = None,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    journal, id = resolve_arguments(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        branch = line.fork(_normalise_id(at), thread=as_)
        newest = branch.messages(1)
        count = len(branch)
    point = newest[0].id if newest else None
    if json:
        output.print_json({"session": id, "thread": branch.thread, "from": line.thread, "at": point, "messages": count})
        return
    where = "at its beginning" if point is None else f"after message {point}"
    output.print_line(
        f"Thread {branch.thread!r} of session {id!r} continues {where} of {line.thread!r}: {count:,} messages.", "green"
    )
    command = format_command("messages", journal, id, "--thread", branch.thread, tenant=tenant)
    output.print_line(f"Read it with: {command}")
    output.print_line(f"Continue with: hf.session({id!r}, thread={branch.thread!r})")


def _normalise_id(id: str | None) -> str | None:
    return None if id is None else id.strip().upper()


def _next_page_option(line: Session, found: list[Message], *, forwards: bool) -> tuple[str, str] | None:
    """Return the option and message id that lead to the next page, if there is one."""
    if not found:
        return None
    if forwards:
        return ("--after", found[-1].id) if line.messages(1, after=found[-1]) else None
    return ("--before", found[0].id) if line.messages(1, before=found[0]) else None


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message to JSON, with nothing shortened."""
    known = output.plain_fields(message)
    known["tool_calls"] = [output.plain_fields(call) for call in message.tool_calls]
    known["tool_results"] = [output.plain_fields(result) for result in message.tool_results]
    return known


def _print_page(page: MessagePage, *, full: bool) -> None:
    out = output.console()
    if out.is_terminal:
        for message in page.messages:
            out.print(_format_head(message))
            out.print(Padding(Text("\n").join(page.pieces(message)), (0, 0, 1, 2)))
    elif full:
        for message in page.messages:
            lines = (line for piece in page.pieces(message) for line in piece.plain.split("\n"))
            output.write_lines((f"{_format_head(message)}\n", *(f"  {line}".rstrip() + "\n" for line in lines), "\n"))
    else:
        output.print_rows(MESSAGE_COLUMNS, map(page.format_row, page.messages), (3,))


def _format_head(message: Message) -> Text:
    tokens = "" if message.tokens is None else f"  {message.tokens:,} tokens"
    return Text.assemble(
        (format_role(message), ROLE_STYLES.get(message.role, "")),
        (f"  {', '.join(message_marks(message))}".rstrip(), "yellow"),
        (f"{tokens}  {output.format_time(message.timestamp)}  {message.id}", "dim"),
    )


class MessagePage:
    """Messages shown together, so that calls and results can refer to each other."""

    def __init__(self, messages: Sequence[Message], *, newest: bool, full: bool) -> None:
        self.messages = messages
        self._full = full
        self._names = {call.id: call.name for message in messages for call in message.tool_calls}
        answered = {result.tool_call_id for message in messages for result in message.tool_results}
        self._labels = shorten_ids([*self._names, *answered])
        # A call may be answered on a later page; only at the end of the thread is it certain to be open.
        self._waiting = self._names.keys() - answered if newest else frozenset()

    def pieces(self, message: Message) -> Iterator[Text]:
        """Yield the pieces of a message: one line each if shortened, else with all their lines."""
        if message.erased and not message.tool_calls and not message.tool_results:
            yield Text(output.ERASED_TEXT, "dim italic")
        elif message.content:
            yield Text(self._format_text(content_text(message.content)))
        for call in message.tool_calls:
            said = f"{output.escape_text(call.name)}({self._format_text(call.arguments)})"
            waits = "  no result yet" if call.id in self._waiting else ""
            line = f"→ {output.ERASED_TEXT if message.erased else said}  {self._labels[call.id]}{waits}"
            yield Text(line, "magenta")
        for result in message.tool_results:
            yield self._format_result(result, erased=message.erased)

    def format_row(self, message: Message) -> tuple[str, ...]:
        """Format a message as a row of the table."""
        return (
            message.id,
            output.format_time(message.timestamp),
            format_role(message),
            "" if message.tokens is None else f"{message.tokens:,}",
            ", ".join(message_marks(message)),
            "  ".join(piece.plain for piece in self.pieces(message)),
        )

    def _format_result(self, result: ToolCallResult, *, erased: bool) -> Text:
        name = self._names.get(result.tool_call_id)
        whose = "" if name is None or erased else f"{output.escape_text(name)}  "
        how = "interrupted: " if result.interrupted else "error: " if result.is_error else ""
        said = output.ERASED_TEXT if erased else self._format_text(result_text(result.result))
        style = "red" if result.is_error or result.interrupted else "cyan"
        return Text(f"← {whose}{self._labels[result.tool_call_id]}  {how}{said}", style)

    def _format_text(self, text: str) -> str:
        return output.escape_lines(text) if self._full else output.escape_text(output.shorten_text(text, SHORT_CHARS))


def message_marks(message: Message) -> list[str]:
    """Return the marks of a message, such as `pinned`."""
    found = [name for name in ("pinned", "partial", "synthetic", "erased") if getattr(message, name)]
    return found + ["interrupted"] * any(result.interrupted for result in message.tool_results)


def format_role(message: Message) -> str:
    """Return a message's role and the speaker's name, if any."""
    name = f" ({output.escape_text(output.shorten_text(message.name, NAME_CHARS))})" if message.name else ""
    return f"{message.role}{name}"


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
    return output.encode_json(result)


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
    about = f": {output.shorten_text(named, SHORT_CHARS)}" if isinstance(named, str) and named != kind else ""
    return f"[{kind}{about}]"
