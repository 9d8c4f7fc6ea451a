"""`holdfast export` and `holdfast import`: a whole journal, or with --session one conversation in a provider's form.

Nothing is overwritten. A conversation is imported whole or not at all, and every repair is reported. A file is
checked against its format first, because a list read in the wrong format would silently lose its tool calls.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.open import (
    PATH_HELP,
    URL_VARIABLE,
    Json,
    existing_path,
    format_command,
    open_existing,
    open_for_import,
    option,
    require_file_path,
    require_path,
    resolve_arguments,
    switch,
)
from holdfast.cli.sessions import Thread, find_session, thread_names
from holdfast.client.holdfast import open as open_journal
from holdfast.errors import InvalidMessage, InvalidValue, NotFound, Refused, Unavailable
from holdfast.flow.sessions import import_export
from holdfast.flow.sessions.import_export import ALL_FORMATS
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.system import write_new_file

MAX_REPAIRS_SHOWN = 20
MAX_REPAIRS_NAMED = 3
REPAIR_COLUMNS = ("message", "problem", "what was done")
STDIN = "-"
BOM = b"\xef\xbb\xbf"
EXPECTED = {
    "openai": 'a JSON array of messages, an object with "messages", or one message a line',
    "responses": 'a JSON array of items, or an object with "input"',
    "anthropic": 'a JSON array of messages, or an object with "messages"',
    "jsonl": "one message a line, as `holdfast export --session … --format jsonl` writes them",
}
_ITEM_FIELDS = {"openai": "messages", "responses": "input", "anthropic": "messages"}
_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")

LooseJournalPath = Annotated[str | None, option(PATH_HELP, name="PATH", allow_leading_hyphen=True)]
Format = Annotated[
    str | None, option(f"With --session, the format: {', '.join(ALL_FORMATS)}; {ALL_FORMATS[0]} if not given.")
]
ConversationTenant = Annotated[str | None, option("With --session, the tenant; 'default' if not given.")]


def export(
    path: LooseJournalPath = None,
    target: Annotated[str | None, option("The file to write; must not exist.", name="TARGET")] = None,
    /,
    *,
    session: Annotated[str | None, option("Export this session, not the whole journal.")] = None,
    thread: Thread = None,
    format: Format = None,
    file: Annotated[
        str | None,
        option(
            "Same as TARGET. With --session, defaults to standard output.",
            name=["--output", "-o"],
            allow_leading_hyphen=True,
        ),
    ] = None,
    until: Annotated[int | None, Parameter(help="Export events up to this cursor only.")] = None,
    tenant: ConversationTenant = None,
    json: Json = False,
) -> None:
    _refuse_options(path)
    if target is not None and file is not None:
        raise InvalidValue("Give TARGET or --output, not both.")
    into = target if file is None else file
    if session is not None:
        if until is not None:
            raise InvalidValue("--until is for a whole journal. Leave out --until or --session.")
        conversation = ConversationSpec.from_options(session, thread, format, tenant)
        export_conversation(require_path(path or os.environ.get(URL_VARIABLE)), conversation, into, json=json)
        return
    _require_session(thread=thread, format=format, tenant=tenant)
    journal, into = resolve_arguments(path, into, "the path of the new export")
    copy = require_file_path(into)
    with open_existing(journal) as hf, output.ProgressBar("export") as progress:
        lines = hf.journal.export(copy, until=until, progress=progress)
    written = copy.stat().st_size
    said = f"Wrote {lines:,} lines to {copy} ({output.format_size(written)}). They hold the journal's secret."
    output.print_result(json, {"export": str(copy), "lines": lines, "bytes": written}, said)


def import_(
    path: LooseJournalPath = None,
    source: Annotated[
        str | None,
        option(
            "The export to read; with --session, a conversation or - for standard input.",
            name="SOURCE",
            allow_leading_hyphen=True,
        ),
    ] = None,
    /,
    *,
    session: Annotated[str | None, option("Import into this session, not into a new journal.")] = None,
    thread: Thread = None,
    format: Format = None,
    strict: Annotated[bool, switch("With --session, refuse a broken conversation instead of repairing it.")] = False,
    key: Annotated[str | None, option("With --session, an idempotency key: the same key imports once.")] = None,
    tenant: ConversationTenant = None,
    json: Json = False,
) -> None:
    _refuse_options(path, source)
    if session is not None:
        journal, given = resolve_arguments(path, source, "the path of a conversation")
        conversation = ConversationSpec.from_options(session, thread, format, tenant)
        import_conversation(journal, conversation, given, strict=strict, key=key, json=json)
        return
    _require_session(thread=thread, format=format, tenant=tenant, key=key, strict=strict or None)
    journal, given = resolve_arguments(path, source, "the path of an export")
    lines, target = require_file_path(given), require_file_path(journal)
    if not lines.is_file():
        raise NotFound(f"There is no export at {lines}.")
    with open_for_import(target) as hf, output.ProgressBar("import") as progress:
        events = hf.journal.import_(lines, progress=progress)
    said = f"Imported {events:,} events into {target}. Check it with `holdfast verify`."
    output.print_result(json, {"journal": str(target), "events": events}, said)


def _refuse_options(*given: str | None) -> None:
    """Refuse a path that looks like a misspelled option. A single `-` is standard input."""
    for argument in given:
        if argument is not None and argument.startswith("-") and argument != STDIN:
            raise InvalidValue(f"Unknown option: {argument}. Write such a path as ./{argument}.")


def _require_session(**options: object) -> None:
    """Refuse options that would be ignored without --session."""
    for name, value in options.items():
        if value is not None:
            raise InvalidValue(f"--{name} needs --session. Add --session, or leave it out.")


class ConversationSpec(NamedTuple):
    """A conversation to export or import: session, thread, external format and tenant."""

    session: str
    thread: str | None
    format: str
    tenant: str | None

    @classmethod
    def from_options(cls, session: str, thread: str | None, format: str | None, tenant: str | None) -> Self:
        """Build a specification from the options of the command line."""
        wanted = ALL_FORMATS[0] if format is None else format
        if wanted not in ALL_FORMATS:
            raise InvalidValue(f"--format {wanted!r:.40} is not known. Use one of {', '.join(ALL_FORMATS)}.")
        return cls(session, thread, wanted, tenant)

    @property
    def thread_name(self) -> str:
        """The name of the thread, `main` if none was given."""
        return MAIN_THREAD if self.thread is None else self.thread


def export_conversation(journal: str, wanted: ConversationSpec, into: str | None, *, json: bool) -> None:
    """Write a conversation to a new file, or to standard output and nothing else there."""
    path = None if into is None or into == STDIN else require_file_path(into)
    if path is not None and path.exists():
        raise Refused(f"{path} exists already. Give the path of a new file.")
    with open_existing(journal, wanted.tenant) as hf, output.ProgressBar("export"):
        line = find_session(hf, wanted.session, wanted.thread)
        messages, exported = len(line), line.export(wanted.format)
    lines = exported if wanted.format == "jsonl" else [msgspec.json.encode(exported).decode()]
    if path is None:
        watched = sys.stdout.isatty()
        output.write_lines((output.escape_json(line) if watched else line) + "\n" for line in lines)
        return
    write_new_file(path, (line.encode() for line in lines))
    written = path.stat().st_size
    said = f"Wrote {messages:,} messages to {path} ({output.format_size(written)})."
    answer = {"export": str(path), "format": wanted.format, "messages": messages, "bytes": written}
    output.print_result(json, answer, said)


def import_conversation(
    journal: str, wanted: ConversationSpec, source: str, *, strict: bool, key: str | None, json: bool
) -> None:
    """Add a conversation to a session. A missing session or journal is created."""
    given = read_conversation(source, wanted.format)
    _check_import(given, wanted, source, strict=strict)
    target = require_file_path(journal)
    new = not target.exists()
    if not new:
        existing_path(journal)
    with open_for_import(target) as client, output.ProgressBar("import") as progress:
        hf = client if wanted.tenant is None else client.tenant(wanted.tenant)
        stream = Scope.thread(wanted.session, wanted.thread_name)
        repeated = key is not None and bool(hf.journal.events_by_key(stream, key))
        begun = not thread_names(hf, wanted.session)
        line = hf.session(wanted.session, thread=wanted.thread_name)
        done = line.import_messages(given, wanted.format, strict=strict, key=key, progress=progress)
    if json:
        where = {"journal": str(target), "session": line.id, "thread": line.thread}
        made = {"new_journal": new, "new_session": begun, "repeated": repeated}
        output.print_json({**where, **made, "messages": done.messages, "repairs": msgspec.to_builtins(done.repairs)})
        return
    _print_import(done, target, wanted, repeated=repeated, new=new, begun=begun)
    if not repeated:
        thread = () if wanted.thread is None else ("--thread", wanted.thread)
        output.print_note(
            f"Read it with: {format_command('messages', journal, line.id, *thread, tenant=wanted.tenant)}"
        )


def _check_import(given: Any, wanted: ConversationSpec, source: str, *, strict: bool) -> None:
    """Refuse input without a readable message, input that is too large and, with `strict`, broken input.

    The import is tried in memory before a journal or a session is created, so refused input leaves nothing behind.
    """
    with open_journal("memory:", tokenizer=len) as trial, output.ProgressBar("check") as progress:
        line = trial.session(wanted.session, thread=wanted.thread_name)
        done = line.import_messages(given, wanted.format, progress=progress)
        empty = not done.messages and line.details.system is None
    repairs = done.repairs
    if not repairs or not (empty or strict):
        return
    name = "Standard input" if source == STDIN else source
    said = "; ".join(f"message {one.index}: {one.problem} ({one.done})" for one in repairs[:MAX_REPAIRS_NAMED])
    more = f"; and {len(repairs) - MAX_REPAIRS_NAMED:,} more" if len(repairs) > MAX_REPAIRS_NAMED else ""
    if empty:
        raise InvalidMessage(f"{name} holds no message that can be read: {said}{more}. Check it, and --format.")
    raise InvalidMessage(
        f"{name} is broken in {len(repairs):,} places, so nothing was imported: {said}{more}. "
        "Leave out --strict to have it repaired."
    )


def _print_import(
    done: import_export.ImportReport, target: Path, wanted: ConversationSpec, *, repeated: bool, new: bool, begun: bool
) -> None:
    session = f"{'the new ' if begun else ''}session {wanted.session!r}"
    if wanted.thread is not None:
        session = f"thread {wanted.thread!r} of {session}"
    journal = f"the new journal {target}" if new else str(target)
    if repeated:
        output.print_line(
            f"These {done.messages:,} messages were imported into {session} with this key before; nothing changed."
        )
    else:
        output.print_line(f"Imported {done.messages:,} messages into {session} of {journal}.", "green")
    if done.repairs:
        output.print_line(f"{len(done.repairs):,} repairs were needed:", "yellow")
        shown = sorted(done.repairs, key=lambda one: one.index)[:MAX_REPAIRS_SHOWN]
        rows = [(str(one.index), output.escape_text(one.problem), output.escape_text(one.done)) for one in shown]
        output.print_table(REPAIR_COLUMNS, rows, partial(output.plain_table, REPAIR_COLUMNS, right=(0,)), (0,))
        if len(done.repairs) > MAX_REPAIRS_SHOWN:
            output.print_line(f"and {len(done.repairs) - MAX_REPAIRS_SHOWN:,} more; --json has them all.", "yellow")


def read_conversation(source: str, format: str) -> Any:
    """Read a conversation in the form that `import_messages` takes: an object, a list, or bytes of JSON lines."""
    body, name = read_source(source, "a conversation")
    if not body.strip():
        raise InvalidMessage(f"{name} is empty. Expected {EXPECTED[format]}.")
    if format == "jsonl":
        _check_format_marks(_decode_first_line(body), format, name)
        return body
    given = _decode(body, format, name)
    _check_format_marks(given, format, name)
    if isinstance(given, dict) and "role" in given:
        return [given]
    field = _ITEM_FIELDS[format]
    items = given.get(field) if isinstance(given, dict) else given
    if not isinstance(items, list) and not (format == "responses" and isinstance(items, str)):
        kind = {str: "a text", bool: "true or false", type(None): "null"}.get(type(given), "a number")
        if isinstance(given, dict):
            kind = f'an object whose "{field}" is no list' if field in given else f'an object without "{field}"'
        raise InvalidMessage(f"{name} holds {kind}. Expected {EXPECTED[format]}.")
    return given


def read_source(source: str, what: str) -> tuple[bytes, str]:
    """Return all bytes of a file or of standard input, and the name to use in errors."""
    if source == STDIN:
        if sys.stdin is None:  # The parent process closed it.
            raise InvalidValue("There is nothing on standard input. Give a file, or pipe one in.")
        return sys.stdin.buffer.read().removeprefix(BOM), "Standard input"
    path = require_file_path(source)
    try:
        # Not only plain files: a shell's <(…) is a pipe.
        return path.read_bytes().removeprefix(BOM), str(path)
    except FileNotFoundError:
        raise NotFound(f"There is no file at {path}. Give the path of {what}, or - for standard input.") from None
    except IsADirectoryError:
        raise InvalidValue(f"{path} is a folder. Give the path of a file in it.") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None


def _decode(body: bytes, format: str, name: str) -> Any:
    """Decode the body as one JSON value, or line by line if the first line is an object of its own."""
    try:
        return _decode_json(body)
    except ValueError as error:
        first = _decode_first_line(body)
        if not isinstance(first, dict) or len(body.strip().splitlines()) < 2:
            raise InvalidMessage(f"{name} is not JSON ({error}). Expected {EXPECTED[format]}.") from None
    lines = enumerate(body.splitlines(), 1)
    return [_decode_line(line, number, format, name) for number, line in lines if line.strip()]


def _decode_line(line: bytes, number: int, format: str, name: str) -> Any:
    try:
        found = _decode_json(line)
    except ValueError as error:
        raise InvalidMessage(f"Line {number} of {name} is not JSON ({error}). Nothing was imported.") from None
    if isinstance(found, dict) and _ITEM_FIELDS[format] in found:
        raise InvalidMessage(
            f"Line {number} of {name} is a whole conversation. Import one at a time, each into its own session."
        )
    return found


def _decode_json(text: bytes) -> Any:
    """Decode JSON as programs write it, including lone surrogates and NaN, which the import repairs."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Slower and more lenient, and its error gives the position.
        return json.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _decode_first_line(body: bytes) -> Any:
    with suppress(ValueError):
        return _decode_json(body.lstrip().split(b"\n", 1)[0])
    return None


def _check_format_marks(given: Any, format: str, name: str) -> None:
    """Refuse input that bears marks of other formats and none of the given one."""
    if isinstance(given, dict) and given.get("kind") == "journal":
        raise InvalidMessage(f"{name} is the export of a whole journal. Import it without --session.")
    found = _detect_formats(given)
    if found and format not in found:
        raise InvalidMessage(
            f"{name} looks like {' or '.join(found)}, not {format}: expected {EXPECTED[format]}. "
            f"Use --format {found[0]} if that is what it is."
        )


def _detect_formats(given: Any) -> list[str]:
    """Return the formats that the input bears marks of; none if it could be any."""
    found: dict[str, None] = {}
    items: Any = given
    if isinstance(given, dict):
        items = given.get("messages", given.get("input", [given]))
        beside = {"instructions": "responses", "input": "responses", "system": "anthropic"}
        found.update({format: None for field, format in beside.items() if field in given and "holdfast" not in given})
    for item in items if isinstance(items, list) else ():
        found.update(dict.fromkeys(_item_formats(item)))
    return list(found)


def _item_formats(item: Any) -> Sequence[str]:
    if not isinstance(item, dict):
        return ()
    if "holdfast" in item or "tool_results" in item:
        return ("jsonl",)
    if "role" not in item:
        return ("responses",) if str(item.get("type", "")).startswith(("function_call", "custom_tool_call")) else ()
    calls = item.get("tool_calls")
    if isinstance(calls, list) and any(isinstance(call, dict) and "name" in call for call in calls):
        return ("jsonl",)
    if calls or item.get("function_call") or item["role"] in ("tool", "function"):
        return ("openai",)
    blocks = item["content"] if isinstance(item.get("content"), list) else []
    if any(isinstance(one, dict) and one.get("type") in _ANTHROPIC_BLOCKS for one in blocks):
        return ("anthropic",)
    return ()
