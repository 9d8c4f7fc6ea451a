"""Write the reference pages from the code, so that they cannot say anything else.

python docs/generate.py            writes docs/reference/*.md
python docs/generate.py --check    says which pages are out of date, and exits 1 if any is
"""
# ruff: noqa: INP001

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import compaction, effects, errors, models
from holdfast import types as types_
from holdfast.aio.frame import AsyncFrame
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.index import AsyncIndexView
from holdfast.aio.journal import AsyncJournalView
from holdfast.aio.session import AsyncSession
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import EXIT_CODES, exit_code, find_command, make_app
from holdfast.client import options
from holdfast.client.effects import Effects
from holdfast.client.frame import Frame
from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from holdfast.client.journal import JournalView
from holdfast.client.session import Session
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
from holdfast.core.sessions.shorten import Cut
from holdfast.extras.dual_write import RefusedEntry
from holdfast.records import frames as frame_records
from holdfast.records import packs, recovery, settings
from holdfast.records.catalogue import _APP_TYPE, CATALOGUE, EventType
from holdfast.records.compaction import POLICY_PRIORITY, PRESETS, STRATEGIES
from holdfast.records.events.calls import OmittedPiece, PackedPiece
from holdfast.records.events.sessions import CallRef, MessageSpan, SharedSegment
from holdfast.records.events.work import TaskNode
from holdfast.records.usage import Usage

REFERENCE = Path(__file__).parent / "reference"
RESULTS = Path(__file__).parent.parent / "bench" / "results.json"
NOTICE = "<!-- Written by docs/generate.py from the code. Change the code, then run it. -->"


# text


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join((NOTICE, f"# {title}", *(part.strip("\n") for part in parts if part))) + "\n"


def table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    names = list(names)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def summary(thing: Any) -> str:
    """A docstring as one paragraph."""
    return " ".join((inspect.getdoc(thing) or "").split())


def type_name(kind: Any) -> str:
    """A type in words that are not Python's alone."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else type_name(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(map(type_name, arguments))}]"
    if origin in (tuple, list):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"map of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if kind is Any:
        return "any JSON"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    plain = getattr(kind, "__supertype__", kind)
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}[plain.__name__]


# events

EVENTS_INTRO = """
Every event that a journal may hold: its name, its kind, the version of its schema, its facts and
its content. There are {count} names, and `app.…` for your own. Names and fields are for ever: an
event once written is never rewritten, only read as a newer schema.

Today holdfast writes the events of sessions, messages and summaries, of frames, questions, calls,
packs and leases, of state and effects, `subject.erased` when something is erased, and your own
`app.…` events through `hf.journal.append`. The events of workers, supervision, tasks and memory, and
`cancel.requested`, are reserved so that no journal has to change when those features arrive.

- **owner** events carry the epoch of the stream's owner, and are refused once another owner
  took over.
- **inbox** events may come from any authorised writer; they carry no epoch and may arrive in any
  order.
- **°** marks facts that holdfast makes at the time of writing (ids, clocks). A retry with the same
  key may bring others, so they are not compared.
- Every event may also have `artifacts`, the names of the large bodies that it keeps alive. A field
  that has its default is left out of the stored bytes.
"""

FAMILIES = {
    "journal": "The journal itself",
    "frames": "Frames and questions",
    "calls": "Calls and packs",
    "sessions": "Sessions and messages",
    "state": "State and effects",
    "work": "Workers, supervision and tasks",
    "memory": "Memory",
    "envelope": "Your own events",
}


def events() -> str:
    """The catalogue."""
    written = [_APP_TYPE, *CATALOGUE.values()]
    parts = [EVENTS_INTRO.format(count=len(CATALOGUE))]
    for module, title in FAMILIES.items():
        rows = [row for row in written if row.facts.__module__.endswith(f".events.{module}")]
        parts.append(f"## {title}")
        parts.extend(_event(row) for row in rows)
    parts.append("## Records inside facts")
    parts.extend(
        f"### {record.__name__}\n\n{summary(record)}{_as_list(record)}\n\n{_fields([(record, '')], frozenset())}"
        for record in (
            frame_records.FrameLimits,
            Usage,
            PackedPiece,
            OmittedPiece,
            TaskNode,
            CallRef,
            SharedSegment,
            MessageSpan,
        )
    )
    return page("Events", *parts)


def _as_list(record: type[Any]) -> str:
    """Small records that come in numbers are stored without the names of their fields."""
    return " Stored as a list, in this order." if record.__struct_config__.array_like else ""


def _event(row: EventType) -> str:
    name = "app.…" if row is _APP_TYPE else row.name
    content = "no content" if row.content is None else f"content: {summary(row.content)}"
    parts = [(row.facts, "facts")] + ([] if row.content is None else [(row.content, "content")])
    fields = _fields(parts, row.minted)
    return f"### `{name}`\n\n{summary(row.facts)}\n\n*{row.kind} · schema {row.schema} · {content}*\n\n{fields}"


def _fields(parts: list[tuple[type[Any], str]], minted: frozenset[str]) -> str:
    rows = []
    for record, part in parts:
        hints, described = typing.get_type_hints(record), _attribute_docs(record)
        for field in msgspec.structs.fields(record):
            if field.name == "artifacts":
                continue
            mark = "°" if part == "facts" and field.name in minted else ""
            about = f". {described[field.name]}" if field.name in described else ""
            cells = [f"`{field.name}`{mark}", type_name(hints[field.name]) + about, _default(field)]
            rows.append([part, *cells] if part else cells)
    heads = ["", "field", "type", "default"] if parts[0][1] else ["field", "type", "default"]
    return table(heads, rows) if rows else "No fields of its own."


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "its defaults"
    return "`" + msgspec.json.encode(value).decode() + "`"


# settings

SETTINGS_INTRO = """
Limits and sizes. They come from `holdfast.open(…, settings=holdfast.Settings(…))`, else from the
environment, else from their defaults. `holdfast doctor` shows the settings in force and the source of
each.
"""

SETTINGS_END = """
Values are whole numbers of 0 or more. An empty variable counts as not set; one that is not a number is
refused when the journal is opened.

## Other variables

| variable | meaning |
| --- | --- |
| `HOLDFAST_URL` | The journal that commands work on when none is given: a path or `sqlite:///path`. |

Durability is not a setting but an argument: `holdfast.open(…, durability="full")` or
`"fast"`. See [Durability](../operate/durability.md).
"""


def settings_page() -> str:
    """Every setting with its variable and default."""
    described = _attribute_docs(settings.Settings)
    rows = []
    for field in msgspec.structs.fields(settings.Settings):
        text, _, variable = described[field.name].rpartition(" ")
        rows.append([f"`{field.name}`", variable, f"{field.default:,}", text])
    return page(
        "Settings", SETTINGS_INTRO, table(["setting", "variable", "default", "what it bounds"], rows), SETTINGS_END
    )


def _attribute_docs(record: type[Any]) -> dict[str, str]:
    """The strings under the fields of a class, which Python itself forgets."""
    (definition,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(definition, ast.ClassDef)
    found, name = {}, ""
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            found[name] = " ".join(str(statement.value.value).split())
    return found


# errors

ERRORS_INTRO = """
Every error is a `HoldfastError` and can be imported from `holdfast.errors`. They are grouped by what the
caller can do. The message says what to do; no error of a database driver reaches you.
"""

ERRORS_END = """
Some errors carry what a program needs to act on them:

| error | attributes |
| --- | --- |
| `VersionConflict` | `stream`, `expected`, `actual` |
| `StaleEpoch` | `stream`, `held`, `current` |
| `InvalidTransition` and its kinds | `before`, `after`: statuses |
| `FrameSuspended`, `Waiting` | `question` |
| `InsufficientTokens` | `requested`, `available`; `BudgetExhausted` also `left` |
| `BudgetTooSmall` | `required`: the budget that would be enough; `unit`: tokens or messages |
| `EvidenceFailed` | `handle`, `reason`; `erased`: whether it was erased |
| `RetryLater` | `retry_after`: seconds, or None |
| `SummaryFailed` | `longer`: whether the summary was no shorter than its messages |

`InvalidValue` is also a `ValueError`; `FrameNotFound`, `CallNotFound` and `QuestionNotFound` with
their kinds are also `NotFound`. The exit code is that of the [command line](cli.md).
"""


def errors_page() -> str:
    """The tree, and every error with what to do."""
    tree = inspect.cleandoc((errors.__doc__ or "").split("\n\n")[1].rstrip())
    rows = [[f"`{kind.__name__}`", f"`{kind.__mro__[1].__name__}`", summary(kind), _exit(kind)] for kind in _errors()]
    heads = ["error", "is a", "message unless a better one is given", "exit code"]
    return page("Errors", ERRORS_INTRO, f"```text\n{tree}\n```", table(heads, rows), ERRORS_END)


def _errors() -> list[type[errors.HoldfastError]]:
    found = (kind for kind in vars(errors).values() if isinstance(kind, type))
    return [kind for kind in found if issubclass(kind, errors.HoldfastError)]


def _exit(kind: type[errors.HoldfastError]) -> str:
    return str(exit_code(kind.__new__(kind)))


# command line

CLI_INTRO = """
The journal is the first argument, `PATH`: a path or `sqlite:///path`. It may be left out when
`HOLDFAST_URL` names it. Commands that only read never create a journal.

`--json` is on every command but `chat`: one object, or for `log` and `effects run` one object a line, on standard
output and nothing else. An error is one line on standard error. Tables are coloured on a terminal only,
and commands that take longer than a second show a progress bar there.

## Exit codes
"""


def cli() -> str:
    """Every command with its arguments and options."""
    app = make_app()
    parts = [CLI_INTRO, table(["code", "meaning"], [[str(code), text] for code, text in EXIT_CODES.items()])]
    for name, command in COMMANDS.items():
        usage = f"holdfast {name} [OPTIONS] {command.arguments}".rstrip()
        rows = [_option(argument) for argument in find_command(app, name).assemble_argument_collection()]
        more = f" {command.more}" if command.more else ""
        parts.append(f"## holdfast {name}\n\n```text\n{usage}\n```\n\n{command.help}{more}\n\n{table(['', ''], rows)}")
    return page("Command line", *parts)


def _option(argument: Any) -> list[str]:
    hints = [kind for kind in typing.get_args(argument.hint) or (argument.hint,) if kind is not type(None)]
    number = hints[0] in (int, float)
    value = "" if bool in hints or not argument.name.startswith("-") else " N" if number else " TEXT"
    default = f" Default: {argument.field_info.default}." if argument.show_default else ""
    return [f"`{argument.name}{value}`", f"{argument.parameter.help}{default}"]


# Python

ASYNC = """
It has the members of `Holdfast`, its `journal` those of `hf.journal` and its `index` those of
`hf.index`, awaited; {iterators} are used with `async for`. `hf.frame` gives an `AsyncFrame`
for `async with`, with the members of `Frame`, of which {awaited} are methods to be awaited.
`run` awaits an async function and runs any other in a thread; callbacks given to `on` are called
on the loop and may be async.

`hf.state(scope)` gives an `AsyncState` with the members of `State` to be awaited;
`holdfast.open_store_async` gives an `AsyncStateStore` for another technology. Operators, sinks and
embedders may be async; an operator that is gets an `AsyncStateReader`.

`await hf.session(…)` gives an `AsyncSession` with the members of `Session`, of which {read} are
methods to be awaited; `len(chat)` is `await chat.length()`, and `async for message in chat` reads
all messages. The members of `session.packs`, `session.compaction` and `session.details` are awaited
too. A pack is complete when it is returned, so rendering it is not awaited. `history_tools` gives an
`AsyncHistoryTools` with the members of `HistoryTools`, of which `run` is awaited. A summarizer and a
memory may be async and are awaited on the loop.

Each operation runs in a thread of the client's own, as a whole. Cancelling an `await` does not
cancel the write: its key finds out what happened.
"""

LOW_LEVEL = """
Frames are named by their ids, scopes by a `Scope` or its text. A `key` makes a call happen once;
`expected_version` is that of the frame. See [Frames](../internals/frames.md),
[Questions](../build/questions.md) and [Recovery](../operate/recovery.md).
"""

BLOCK = """
For a `with` block; `open` and `leave` are the calls that the block makes, for code that cannot use one. The
frame's status after the block is in a [table](../internals/frames.md#leaving-the-block).
"""

TALK = """
`len(chat)` is how many messages it has, and iterating over it reads all of them, oldest first. A
message is given as a stored `Message` or by its id. See [Sessions](../build/sessions.md),
[Messages](../build/messages.md), [Context packs](../build/packs.md) and
[Compaction](../build/compaction.md).
"""

PACK = """
Made by `pack` of a session or a frame and by `hf.index.assemble_context_pack`; `pack_at` gives one
that was journaled. It renders itself in a notebook. See [Context packs](../build/packs.md),
[Windows](../build/windows.md), [Briefs](../build/briefs.md) and
[Evidence](../build/evidence.md).
"""

OPTIONS = """
Keyword arguments that several methods take as `**options`; the asyncio client takes the same ones. An option that is
left out has its default, and an unknown one raises a `TypeError`.
"""

OPTION_SETS: tuple[Any, ...] = (
    options.OpenOptions,
    options.StoreOptions,
    options.SessionOptions,
    options.PackOptions,
    options.TurnOptions,
    options.QuestionOptions,
    options.AgentOptions,
)

REQUESTS = """
The requests that a pack renders to, each a `TypedDict` to be passed on with `**`:
`client.chat.completions.create(model=…, **pack.to_openai())`. The caller adds the rest, such as
the model.
"""

AGENT = """
Made by `history_tools` of a session or a frame. See
[Give an agent access to its history](../build/agent-tools.md).
"""

FILES = "For `holdfast.open(documents=…)`. See [Files](../build/evidence.md#files)."
WEB = "For `holdfast.open(fetcher=…)`. See [The web](../build/evidence.md#the-web)."
SPANS = "For `holdfast.open(telemetry=…)`. See [Traces](../operate/telemetry.md)."

COMPACTING = """
Names that `compact`, `compact_context`, `CompactionConfig` and `add_rule` take, and the policies of
messages and evidence. See [Compaction](../build/compaction.md).
"""
LISTS = "For applications that keep their own messages. See [Windows](../build/windows.md#windows-over-your-own-list)."
MODELS = "See [Tokens](../build/tokens.md)."

MIGRATING = """
`list` is the given list, `refused` the entries that the session refused (`RefusedEntry`).
`len` and iteration are those of the list. See [Moving from a message list](../build/moving.md).
"""

ENV = """
Arguments of `open`:

- `tokenizer`: a name, a function, or an object with `name`, `exact` and `count(text) -> int`. See
  [Tokens](../build/tokens.md).
- `redact`: a function from text to text. See [Redaction](../build/messages.md#redaction).
- `memory`: an object with `take(ended: EndedConversation) -> None`. See
  [Hand-over to memory](../build/sessions.md#hand-over-to-memory).
- `summarizer`: a function from messages to text, or an object with `name` and
  `summarise(messages, *, max_tokens) -> str`. See [Summaries](../build/windows.md#summaries).
- `embedder`: `"wordllama"`, a model's folder, an address, a function from texts to vectors, or an object with
  `name` and `embed(texts)`. See [Vectors](../build/search.md#vectors).
- `documents`: a `DocumentRoot`, or an object with `read(path) -> str`. See [Files](../build/evidence.md#files).
- `fetcher`: an `HttpsFetcher`, or an object with `fetch(url) -> str`. Nothing is fetched without one. See
  [The web](../build/evidence.md#the-web).
- `telemetry`: an `OpenTelemetry`, or an object with `span`, `begin_call` and `end_call`. See
  [Traces](../operate/telemetry.md).
- `prices`: prices per million tokens by the beginning of a model's name, or a function `(model, usage) -> dollars`. See
  [Limits and money](../build/agents.md#limits-and-money).
- `strategies`: functions from segments and `budget` to the segments that stay, by name. See
  [Strategies](../build/compaction.md#how-strategies).
"""

TURN = """
Made by `session.turn(…)`; iterating gives the steps below. It has the members of `Frame` besides: it is a root frame.
On the async client it is an `AsyncTurn`, and its steps are `AsyncCallModel` and `AsyncCallTool`, whose outcomes are
awaited. See [Turns](../build/turns.md).
"""

AGENTS = """
Made by `hf.agent(…)`. On the async client it is an `AsyncAgent` with the same members: `send` and `stop` are awaited,
`stream` and `tail` used with `async for`, `recovering` with `async with`. See [Agents](../build/agents.md).
"""

TOOLS = """
See [Tools](../build/tools.md). An `async def` is given an `AsyncToolCall`, whose methods are awaited.
"""

SPEAKING = """
A model for agents. Any object with `name`, `async reply(asked: ModelCall, say) -> ModelReply` and `async close()` is
one. See [Models](../build/models.md).
"""

KEPT = """
`StateStore`: called with a scope it gives the `State` of that scope. `holdfast.open_store` gives one for another
technology. See [State](../build/state.md).
"""

ENTRIES = "`name in state` is true if a key has a value; iterating gives the keys. See [State](../build/state.md)."
TYPES = "See [Values of your own types](../build/state.md#values-of-your-own-types)."
IDS = (
    "`holdfast.types` has `SessionId`, `OperatorId` and `WorkflowId`: text at run time, and to a type checker no two "
    "of them are the same. What holdfast returns has these types; arguments accept any text."
)
DECLARED = "See [Effects](../build/effects.md)."
STORES = (holdfast.open_store, holdfast.open_store_async)

SLOTS = {
    "pack": "The `ContextPack` to send.",
    "call": "The id of the model call.",
    "model": "The model of the session.",
    "repeated": "True if an earlier process may have called it already.",
    "attempt": "The number of this run, from 1.",
    "answer": "A person's answer to a question about it.",
    "request": "The `ToolCallRequest` that the model made.",
    "questions": "All open questions, as `QuestionInfo`.",
    "message": "The stored reply.",
    "reason": "Why it was stopped, in a sentence.",
    "code": "Why it was stopped, in one word; None if it is done.",
    "status": "`done` or `stopped`.",
    "id": "The session's id.",
    "thread": "The thread of the session.",
    "scope": "The scope, as text.",
}
"""What is an attribute and nothing more has no docstring of its own."""

RECORDS = (
    types_.Event,
    types_.AppendResult,
    types_.VerificationReport,
    types_.Finding,
    types_.Erasure,
    holdfast.Usage,
    types_.TokenBudget,
    holdfast.Limits,
    types_.FrameLimits,
    types_.FrameInfo,
    types_.QuestionInfo,
    types_.QuestionReceipt,
    types_.Answer,
    types_.ActorResumeState,
    types_.PendingWork,
    types_.SweepReport,
    holdfast.Message,
    holdfast.ToolCallRequest,
    holdfast.ToolCallResult,
    holdfast.ToolDef,
    types_.SessionInfo,
    types_.SessionSweepReport,
    types_.EndedConversation,
    types_.BriefContext,
    types_.Segment,
    types_.ConversationSlice,
    types_.FrameBreadcrumb,
    types_.RetrievedEvidence,
    types_.TokenSummary,
    types_.TokenBreakdown,
    types_.ContextPackMetadata,
    types_.Decision,
    types_.PackDiff,
    types_.PackInfo,
    types_.Trace,
    types_.Appearance,
    compaction.CompactionConfig,
    compaction.CompactionResult,
    compaction.Rule,
    compaction.MessagesOver,
    compaction.TokensOver,
    compaction.PackOverBudget,
    compaction.Always,
    compaction.BudgetGuard,
    compaction.TelemetryRecorder,
    compaction.Occasion,
    compaction.Summary,
    types_.Window,
    types_.ImportReport,
    types_.Repair,
    models.ModelInfo,
    holdfast.Reply,
    holdfast.AgentEvent,
    models.ModelCall,
    models.ModelReply,
    models.Delta,
    holdfast.Bytes,
    types_.Entry,
    types_.Revision,
    types_.SearchResult,
    types_.Edge,
    types_.TraversalResult,
    effects.OperatorOutput,
    effects.OperatorResult,
    effects.EffectOutcome,
    effects.WriteState,
    effects.DeleteState,
    effects.LinkState,
    effects.UnlinkState,
    effects.PushFrame,
    effects.Delegate,
    effects.Handoff,
    effects.RequestApproval,
    effects.Signal,
    effects.Custom,
    effects.DeclaredEffect,
    effects.EffectInfo,
    effects.DispatchReport,
)

PARTS = (
    recovery.RecoverySummary,
    recovery.HandleInfo,
    recovery.ResultInfo,
    frame_records.Handle,
    frame_records.ResultRef,
    frame_records.Call,
    frame_records.Question,
    MessageSpan,
    Cut,
    RefusedEntry,
    packs.Origin,
    packs.AssembledPack,
    packs.WindowKey,
)


def python() -> str:
    """Every public name."""
    return page(
        "Python",
        "Everything that `import holdfast` offers. Names that are not on this page are not public.",
        _modules(),
        _functions("Opening", "", holdfast.open, holdfast.open_async, holdfast.restore, *STORES),
        ENV,
        _methods("Holdfast", Holdfast),
        _methods("Session", Session, TALK),
        _methods("session.packs", SessionPacks),
        _methods("session.compaction", SessionCompaction),
        _methods("session.details", SessionDetails),
        _methods("ContextPack", holdfast.ContextPack, PACK),
        _options(),
        _requests(),
        _methods("HistoryTools", types_.HistoryTools, AGENT),
        _methods("Turn", holdfast.Turn, TURN),
        _methods("CallModel", holdfast.CallModel),
        _methods("CallTool", holdfast.CallTool),
        _methods("Ask", holdfast.Ask),
        _methods("Done", holdfast.Done),
        _methods("Agent", holdfast.Agent, AGENTS),
        _functions("Tools", TOOLS, holdfast.tool),
        _methods("Tool", holdfast.Tool),
        _methods("ToolCall", holdfast.ToolCall),
        _methods("McpServer", holdfast.McpServer, made=True),
        _methods("OpenAIChat", holdfast.OpenAIChat, SPEAKING, made=True),
        _methods("OpenAIResponses", holdfast.OpenAIResponses, made=True),
        _methods("AnthropicMessages", holdfast.AnthropicMessages, made=True),
        _methods("Scripted", holdfast.Scripted, made=True),
        _methods("Recorded", models.Recorded, made=True),
        _methods("hf.state", types_.StateStore, KEPT),
        _methods("State", holdfast.State, ENTRIES),
        f"## StateReader\n\n{summary(types_.StateReader)} It has the reading methods of `State`.",
        _functions("Types of values", TYPES, holdfast.register_type),
        _methods("hf.effects", Effects, DECLARED),
        _methods("WebhookSink", effects.WebhookSink, made=True),
        _functions("Receiving webhooks", "", effects.verify_webhook),
        _methods("hf.journal", JournalView),
        _methods("Frame", Frame, BLOCK),
        _methods("hf.index", IndexView, LOW_LEVEL),
        *_asyncio(),
        _compaction(),
        _methods("DocumentRoot", holdfast.DocumentRoot, FILES, made=True),
        _methods("HttpsFetcher", holdfast.HttpsFetcher, WEB, made=True),
        _methods("OpenTelemetry", holdfast.OpenTelemetry, SPANS, made=True),
        _functions(
            "Windows over a list", LISTS, holdfast.slide_window, holdfast.summarise_window, holdfast.count_tokens
        ),
        _functions("Models", MODELS, models.model_info, models.register_model, models.register_price),
        _methods("ModelSummarizer", compaction.ModelSummarizer, made=True),
        _methods("DualWrite", holdfast.DualWrite, MIGRATING, made=True),
        _methods("Scope", holdfast.Scope),
        f"## Ids\n\n{IDS}",
        "## Records\n\nFrozen, plain records.",
        *(_record(kind) for kind in RECORDS),
        f"### CompactionLevel\n\n{summary(compaction.CompactionLevel)}\n\n{_levels()}",
        f"### Erased\n\n{summary(types_.Erased)} `holdfast.types.ERASED` is its only instance, and it is false.",
        f"### Settings\n\n{summary(holdfast.Settings)} See [Settings](settings.md).",
        "## Parts of records\n\nFound in the fields of others; there is no need to construct or import one.",
        *(_record(kind) for kind in PARTS),
        "## Errors\n\nSee [Errors](errors.md): " + ", ".join(f"`{kind.__name__}`" for kind in _errors()) + ".",
        "## Version\n\n`holdfast.__version__` is the release that is installed, as text.",
    )


PUBLIC = (compaction, effects, errors, models, types_)
"""The public modules beside the root."""


def _modules() -> str:
    """The public modules and the names that each of them has."""
    rows = [["`holdfast`", ", ".join(f"`{name}`" for name in ["open", *holdfast.__all__])]]
    for module in PUBLIC:
        names = [kind.__name__ for kind in _errors()] if module is errors else module.__all__
        rows.append([f"`{module.__name__}`", ", ".join(f"`{name}`" for name in names)])
    return "## Modules\n\n" + table(["module", "names"], rows)


def _home(name: str) -> str:
    """The public module of a name."""
    found = [module for module in PUBLIC if module is not errors and name in module.__all__]
    return "holdfast" if name == "open" or name in holdfast.__all__ else found[0].__name__


def _asyncio() -> tuple[str, str]:
    iterators = [f"`{name}`" for view in (AsyncJournalView, AsyncIndexView) for name in _iterated(view)]
    awaited = [f"`{name}`" for name in _awaited(Frame, AsyncFrame)]
    read = [f"`{name}`" for name in _awaited(Session, AsyncSession)]
    said = ASYNC.format(iterators=", ".join(iterators), awaited=", ".join(awaited), read=", ".join(read))
    return f"## AsyncHoldfast\n\n{summary(AsyncHoldfast)}", said


def _options() -> str:
    """The keyword options that methods share, each set in its order."""
    parts = [f"## Options\n\n{OPTIONS.strip()}"]
    for kind in OPTION_SETS:
        sets = [one for one in vars(options).values() if typing.is_typeddict(one)]
        parts_of = [one for one in sets if set(one.__annotations__) <= set(kind.__annotations__)]
        described = {name: text for one in parts_of for name, text in _attribute_docs(one).items()}
        rows = [[f"`{name}`", described[name]] for name in kind.__annotations__]
        parts.append(f"### {kind.__name__}\n\n{summary(kind)}\n\n{table(['option', ''], rows)}")
    return "\n\n".join(parts)


def _requests() -> str:
    """The keyword arguments that a pack becomes, by their names and types."""
    parts = [f"## Requests\n\n{REQUESTS.strip()}"]
    for kind in (types_.OpenAIRequest, types_.ResponsesRequest, types_.AnthropicRequest):
        hints = typing.get_type_hints(kind, include_extras=True)
        rows = [[f"`{key}`", *_key(hint)] for key, hint in hints.items()]
        parts.append(f"### {kind.__name__}\n\n{summary(kind)}\n\n{table(['key', 'type', ''], rows)}")
    return "\n\n".join(parts)


def _key(hint: Any) -> tuple[str, str]:
    """The type of a key in words, and whether it may be missing."""
    optional = typing.get_origin(hint) is typing.NotRequired
    kind = typing.get_args(hint)[0] if optional else hint
    return type_name(kind).replace("list of any JSON", "list"), "may be missing" if optional else ""


def _compaction() -> str:
    """The names that compaction knows, with the numbers behind them."""
    named = [["strategies", ", ".join(f"`{name}`" for name in STRATEGIES) + ", and those given to `holdfast.open`"]]
    named += [[f"preset `{name}`", _changed(config)] for name, config in PRESETS.items()]
    named += [[f"policy `{name}`", f"priority `{priority}`"] for name, priority in POLICY_PRIORITY.items()]
    return "\n\n".join(["## Compaction", COMPACTING.strip(), table(["", ""], named)])


def _changed(config: compaction.CompactionConfig) -> str:
    """How a configuration differs from one that says nothing."""
    plain = compaction.CompactionConfig()
    shown = [(n, getattr(config, n)) for n in config.__struct_fields__ if getattr(config, n) != getattr(plain, n)]
    return f"`CompactionConfig({', '.join(f'{name}={value!r}' for name, value in shown)})`"


def _levels() -> str:
    return table(["", ""], [[f"`CompactionLevel.{level.name}`", f"`{level.value}`"] for level in packs.LEVELS])


def _functions(title: str, more: str, *functions: Callable[..., Any]) -> str:
    rows = table(["", ""], [_callable(function) for function in functions])
    return "\n\n".join([f"## {title}", *filter(None, [more]), rows])


def _iterated(view: type[Any]) -> list[str]:
    """What is used with `async for`: whatever is not awaited."""
    methods = ((name, member) for name, member in vars(view).items() if inspect.isfunction(member))
    return [name for name, member in methods if not name.startswith("_") and not inspect.iscoroutinefunction(member)]


def _awaited(plain: type[Any], awaited: type[Any]) -> list[str]:
    """Properties of the one that are methods of the other."""
    found = {n: inspect.getattr_static(awaited, n, None) for n, m in members(plain) if isinstance(m, property)}
    return [name for name, member in found.items() if inspect.iscoroutinefunction(member)]


def _callable(function: Callable[..., Any], owner: str | None = None, *, method: bool = False) -> list[str]:
    owner = f"{_home(function.__name__)}." if owner is None else owner
    names: list[str] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[method:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(before.startswith("*") for before in names):
            names.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = repr(parameter.default)
        shown = default if len(default) <= LONGEST_DEFAULT else "…"
        names.append(f"{stars}{name}" if parameter.default is parameter.empty else f"{name}={shown}")
    return [f"`{owner}{function.__name__}({', '.join(names)})`", summary(function)]


def members(kind: type[Any]) -> list[tuple[str, Any]]:
    """What a class offers, what it inherits from ours first."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("holdfast")]
    return [(name, member) for base in ours for name, member in vars(base).items()]


def _methods(title: str, kind: type[Any], more: str = "", *, made: bool = False) -> str:
    rows = [[_callable(kind)[0], "Constructor."]] if made else []
    for name, member in members(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            rows.append([f"`{name}`", summary(member.fget)])
        elif name in SLOTS and inspect.ismemberdescriptor(member):
            rows.append([f"`{name}`", SLOTS[name]])
        elif isinstance(member, classmethod):
            rows.append(_callable(getattr(kind, name), f"{kind.__name__}."))
        elif inspect.isfunction(member):
            rows.append(_callable(member, "", method=True))
    return "\n\n".join([f"## {title}", summary(kind), *filter(None, [more.strip()]), table(["", ""], rows)])


def _record(kind: type[Any]) -> str:
    return f"### {kind.__name__}\n\n{summary(kind)}\n\n{_members(kind)}"


def _members(kind: type[Any]) -> str:
    described = _attribute_docs(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        about = f" {described[field.name]}" if field.name in described else ""
        written = next(base.__annotations__[field.name] for base in kind.__mro__ if field.name in base.__annotations__)
        rows.append([f"`{field.name}`", f"`{written}`{about}"])
    rows += [[f"`{n}`", summary(p.fget)] for n, p in vars(kind).items() if isinstance(p, property)]
    methods = [m for n, m in vars(kind).items() if inspect.isfunction(m) and not n.startswith("_")]
    return table(["", ""], rows + [_callable(method, "", method=True) for method in methods])


LONGEST_DEFAULT = 80
"""A default that is longer, such as a whole prompt, is not spelled out."""


def measured() -> str:
    """The last whole run of the benchmarks."""
    found = msgspec.json.decode(RESULTS.read_bytes())
    run = found["measured_with"]
    intro = f"""Results of one complete, undisturbed run of `make bench` with holdfast {run["holdfast"]}:
Python {run["python"]}, SQLite {run["sqlite"]}, {run["system"]} with {run["cores"]} cores. Peers run in interleaved
rounds of the same run, with their defaults or the safer setting that the note names. A ratio (`x`) is the median of its
rounds; the note has their spread and the raw numbers, the bar says which side is better. Times do not carry over
to another machine: run it on yours."""
    parts = _peers_ahead(found["topics"].values())
    for topic in found["topics"].values():
        rows = [[line["what"], _amount(line), line.get("bar", ""), line["note"]] for line in topic["lines"]]
        parts += [f"## {topic['title']}", table(("what", "measured", "bar", "note"), rows)]
    return page("Measured", intro, *parts)


def _peers_ahead(topics: Iterable[dict[str, Any]]) -> list[str]:
    """Every comparison with a peer that the peer wins; nothing if the run compared with none."""
    lines = [line for topic in topics for line in topic["lines"] if "peer" in line]
    if not lines:
        return []
    behind = sorted((line for line in lines if line["lead"] < 1), key=lambda line: line["lead"])
    intro = f"Of {len(lines)} comparisons with a peer, {len(behind)} are won by the peer."
    if not behind:
        return ["## Where a peer is ahead", intro]
    intro += " These are all of them, the widest first; by 2 x is half the time or half the bytes."
    rows = [[line["what"], line["peer"], f"{1 / line['lead']:.2f} x", line["note"]] for line in behind]
    return ["## Where a peer is ahead", intro, table(("what", "peer", "ahead by", "note"), rows)]


def _amount(line: dict[str, Any]) -> str:
    value = line["value"]
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {line['unit']}".strip()


PAGES: dict[str, Callable[[], str]] = {
    "events.md": events,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "cli.md": cli,
    "python.md": python,
    "measured.md": measured,
}


def outdated() -> list[str]:
    """The pages that do not say what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text(encoding="utf-8") != make()
    ]


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    if arguments == ["--check"]:
        late = outdated()
        if late:
            sys.stderr.write(f"Out of date: {', '.join(late)}. Run: python docs/generate.py\n")
        return int(bool(late))
    if arguments:
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
