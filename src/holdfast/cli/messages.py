"""`holdfast messages` and `holdfast fork`: read a conversation page by page, and fork a new thread from it.

Messages were written by users, models and tools: every piece of text is escaped before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.log import format_time
from holdfast.cli.open import (
    JournalPathFirst,
    Json,
    Tenant,
    format_command,
    open_existing,
    option,
    resolve_arguments,
    switch,
)
from holdfast.cli.output import (
    ERASED_TEXT,
    console,
    encode_json,
    escape_lines,
    escape_text,
    plain_fields,
    print_json,
    print_line,
    print_note,
    print_rows,
    shorten_text,
    write_lines,
)
from holdfast.cli.sessions import Thread, check_limit, find_session
from holdfast.cli.stack import shorten_ids
from holdfast.client.session import Session
from holdfast.records.messages import Message, Part, ToolCallRequest, ToolCallResult
from holdfast.records.scope import MAIN_THREAD

DEFAULT_LIMIT = 20
COLUMNS = ("message", "time (UTC)", "role", "tokens", "marks", "text")
SHORT_CHARS = 160
NAME_CHARS = 24
STYLES = {"user": "bold", "assistant": "green", "tool": "cyan", "system": "yellow", "developer": "yellow"}
SessionArgument = Annotated[str | None, option("The session's id.", name="SESSION")]


def messages(
    path: JournalPathFirst,
    session: SessionArgument = None,
    /,
    *,
    thread: Thread = None,
    limit: Annotated[
        int, Parameter(help="Show at most N messages: the newest, or those next to --before or --after.")
    ] = DEFAULT_LIMIT,
    before: Annotated[str | None, option("Only messages before this message id.")] = None,
    after: Annotated[str | None, option("Only messages after this message id.")] = None,
    full: Annotated[bool, switch("Show full texts.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Show the messages of a conversation, oldest first."""
    check_limit(limit)
    journal, id = resolve_arguments(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        found = line.messages(limit, before=_normalise_id(before), after=_normalise_id(after))
        if json:
            said = [message_to_json(message) for message in found]
            print_json({"session": line.id, "thread": line.thread, "messages": said})
            return
        more = _next_page_option(line, found, forwards=after is not None)
    if not found:
        print_note("There are no messages." if before is None and after is None else "There are no more messages.")
        return
    newest = before is None and (after is None or more is None)
    _print_page(MessagePage(found, newest=newest, full=full), full=full)
    if more is not None:
        which = () if line.thread == MAIN_THREAD else ("--thread", line.thread)
        side = "Later" if more[0] == "--after" else "Earlier"
        print_note(f"{side} messages: {format_command('messages', journal, line.id, *which, *more, tenant=tenant)}")


def fork(
    path: JournalPathFirst,
    session: SessionArgument = None,
    /,
    *,
    at: Annotated[str | None, option("Fork after this message id; the newest if not given.")] = None,
    as_: Annotated[str | None, option("The new thread's name; generated if not given.", name="--as")] = None,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Fork a new thread after a message. Nothing is copied, and the old thread stays as it is."""
    journal, id = resolve_arguments(path, session, "the session's id")
    with open_existing(journal, tenant) as hf:
        line = find_session(hf, id, thread)
        branch = line.fork(_normalise_id(at), thread=as_)
        newest = branch.messages(1)
        count = len(branch)
    point = newest[0].id if newest else None
    if json:
        print_json({"session": id, "thread": branch.thread, "from": line.thread, "at": point, "messages": count})
        return
    where = "at its beginning" if point is None else f"after message {point}"
    print_line(
        f"Thread {branch.thread!r} of session {id!r} continues {where} of {line.thread!r}: {count:,} messages.", "green"
    )
    print_line(f"Read it with: {format_command('messages', journal, id, '--thread', branch.thread, tenant=tenant)}")
    print_line(f"Continue with: hf.session({id!r}, thread={branch.thread!r})")


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
    known = plain_fields(message)
    known["tool_calls"] = [plain_fields(call) for call in message.tool_calls]
    known["tool_results"] = [plain_fields(result) for result in message.tool_results]
    return known


def _print_page(page: MessagePage, *, full: bool) -> None:
    out = console()
    if out.is_terminal:
        for message in page.messages:
            out.print(_format_head(message))
            out.print(Padding(Text("\n").join(Text(*piece) for piece in page.pieces(message)), (0, 0, 1, 2)))
    elif full:
        write_lines(_format_blocks(page))
    else:
        print_rows(COLUMNS, map(page.format_row, page.messages), (3,))


def _format_blocks(page: MessagePage) -> Iterator[str]:
    for message in page.messages:
        yield f"{_format_head(message).plain}\n"
        for piece in page.pieces(message):
            yield from (f"  {line}".rstrip() + "\n" for line in piece.text.split("\n"))
        yield "\n"


def _format_head(message: Message) -> Text:
    tokens = "" if message.tokens is None else f"  {message.tokens:,} tokens"
    return Text.assemble(
        (format_role(message), STYLES.get(message.role, "")),
        (f"  {', '.join(message_marks(message))}".rstrip(), "yellow"),
        (f"{tokens}  {format_time(message.timestamp)}  {message.id}", "dim"),
    )


class StyledText(NamedTuple):
    """A piece of text and its style."""

    text: str
    style: str = ""


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

    def pieces(self, message: Message) -> Iterator[StyledText]:
        """Yield the pieces of a message: one line each if shortened, else with all their lines."""
        if message.erased and not message.tool_calls and not message.tool_results:
            yield StyledText(ERASED_TEXT, "dim italic")
        elif message.content:
            yield StyledText(self._format_text(content_text(message.content)), "")
        for call in message.tool_calls:
            yield self._format_call(call, erased=message.erased)
        for result in message.tool_results:
            yield self._format_result(result, erased=message.erased)

    def format_row(self, message: Message) -> tuple[str, ...]:
        """Format a message as a row of the table."""
        return (
            message.id,
            format_time(message.timestamp),
            format_role(message),
            "" if message.tokens is None else f"{message.tokens:,}",
            ", ".join(message_marks(message)),
            "  ".join(piece.text for piece in self.pieces(message)),
        )

    def _format_call(self, call: ToolCallRequest, *, erased: bool) -> StyledText:
        said = ERASED_TEXT if erased else f"{escape_text(call.name)}({self._format_text(call.arguments)})"
        waits = "  no result yet" if call.id in self._waiting else ""
        return StyledText(f"→ {said}  {self._labels[call.id]}{waits}", "magenta")

    def _format_result(self, result: ToolCallResult, *, erased: bool) -> StyledText:
        name = self._names.get(result.tool_call_id)
        whose = "" if name is None or erased else f"{escape_text(name)}  "
        how = "interrupted: " if result.interrupted else "error: " if result.is_error else ""
        said = ERASED_TEXT if erased else self._format_text(result_text(result.result))
        style = "red" if result.is_error or result.interrupted else "cyan"
        return StyledText(f"← {whose}{self._labels[result.tool_call_id]}  {how}{said}", style)

    def _format_text(self, text: str) -> str:
        return escape_lines(text) if self._full else escape_text(shorten_text(text, SHORT_CHARS))


def message_marks(message: Message) -> list[str]:
    """Return the marks of a message, such as `pinned`."""
    found = [name for name in ("pinned", "partial", "synthetic", "erased") if getattr(message, name)]
    return found + ["interrupted"] * any(result.interrupted for result in message.tool_results)


def format_role(message: Message) -> str:
    """Return a message's role and the speaker's name, if any."""
    return (
        message.role if not message.name else f"{message.role} ({escape_text(shorten_text(message.name, NAME_CHARS))})"
    )


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
    return encode_json(result)


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
    return (
        f"[{kind}]" if not isinstance(named, str) or named == kind else f"[{kind}: {shorten_text(named, SHORT_CHARS)}]"
    )
