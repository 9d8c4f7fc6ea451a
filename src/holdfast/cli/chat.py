"""`holdfast chat`: an agent in the terminal. Kill it at any point and start it again: it continues.

An error in a turn is printed as one line, and the chat continues. Piped input is read line by line, without a
prompt and without colours, so that scripts can use it. Lines that begin with a slash are commands. Tools are
given as `module:name`. Without a key for a provider, a scripted model with two tools answers; nothing then leaves
the machine.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from holdfast.aio.executor import STEPS
from holdfast.cli.chat_session import PROMPT, ChatSession, is_yes_no_question, parse_verdict, print_error
from holdfast.cli.frames import FrameForest
from holdfast.cli.main import INTERRUPTED, OK, exit_code
from holdfast.cli.open import URL_VARIABLE, Tenant, option, switch
from holdfast.cli.output import console, facts_table, print_line, print_note
from holdfast.cli.pack import show_decisions, show_pack, show_trace
from holdfast.cli.sessions import Thread
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.client.session import Session
from holdfast.connect import make_model
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.model.scripted import Scripted, call, echo, read_pack
from holdfast.records.messages import RenderablePack
from holdfast.records.scope import MAIN_THREAD
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.tool import AnyTool, tool

AGENT = "chat"
JOURNAL = "agent.db"
MODEL_VARIABLE = "HOLDFAST_MODEL"
SCRIPTED = "scripted"
GRACE_SECONDS = 1.0
KEY_MODELS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5"}
NO_KEY_NOTICE = "A scripted model answers without an API key. It knows two things: "
EXAMPLES = 'try "refund order 17, 240" (then kill this terminal and start again) or "remember that I like tea".'
PAUSE_SECONDS = 0.02
REFUND_SECONDS = 10
_REFUND = re.compile(r"\brefund\b\D*([0-9]{1,9})\D+([0-9]{1,9})", re.IGNORECASE)
_REMEMBER = re.compile(r"\s*remember(?:\s+that)?\s+(.+)", re.IGNORECASE | re.DOTALL)
TOOL_NAME_HELP = "Write module:name, as in shop:refund for refund in shop.py, or the name of a list of tools."


def chat(
    path: Annotated[
        str,
        Parameter(name="PATH", env_var=URL_VARIABLE, help="The journal: a path or sqlite:///path. Created if missing."),
    ] = JOURNAL,
    /,
    *,
    session: Annotated[str, Parameter(help="The session's id.")] = "chat",
    model: Annotated[
        str | None,
        option(
            "The model: openai:gpt-5-mini, anthropic:claude-sonnet-4-5, openai:NAME@ADDRESS or scripted. Default: "
            f"{MODEL_VARIABLE}, else the provider whose API key is set, else scripted, which needs no key.",
            env_var=MODEL_VARIABLE,
        ),
    ] = None,
    system: Annotated[str | None, option("The system prompt.")] = None,
    tools: Annotated[list[str] | None, switch("A tool or a list of tools, as module:name. May be repeated.")] = None,
    say: Annotated[list[str] | None, switch("Send this message and exit, without a prompt. May be repeated.")] = None,
    thread: Thread = None,
    tenant: Tenant = None,
) -> int:
    """Talk with an agent in the terminal; kill it, start again, and it continues."""
    given = load_tools(tools or [])
    chosen = model or next((name for key, name in KEY_MODELS.items() if os.environ.get(key)), SCRIPTED)
    typed = say is None and sys.stdin is not None and sys.stdin.isatty()
    with open_journal(path) as whole:
        hf = whole if tenant is None else whole.tenant(tenant)
        practice = chosen == SCRIPTED and not given
        script = Scripted(_answer_by_rules, pause=PAUSE_SECONDS if typed else 0.0)
        given = make_practice_tools(hf, session, slow=typed) if practice else given
        agent: Any = hf.agent(AGENT, model=script if practice else make_model(chosen), system=system, tools=given)
        talk = ChatSession(hf, agent, session, thread or MAIN_THREAD)
        print_note(f"{session} in {path}, model {chosen}. Type /help for commands.")
        if practice:
            print_note(NO_KEY_NOTICE + EXAMPLES)
        code = _run_chat(talk, _prompt_lines() if typed else _read_lines(say), typed=typed)
    _exit_if_stuck(code)
    return code


def _run_chat(talk: ChatSession, lines: Iterator[str], *, typed: bool) -> int:
    """Run the chat until its input ends; return the exit code."""
    code = OK
    try:
        code = _handle_line(talk, None) or code
        for line in lines:
            try:
                code = _handle_line(talk, line) or code
            except ChatExit:
                break
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        print_note("Left. An unfinished turn continues when the chat is started again.")
        return INTERRUPTED
    return OK if typed else code


def _handle_line(talk: ChatSession, line: str | None) -> int:
    """Handle a command, an answer or a message (None begins the chat), report its errors and return the exit code."""
    try:
        said = "" if line is None else line.strip()
        if line is None:
            talk.begin()
        elif said.startswith("/") and not said.startswith("//"):
            run_command(talk, said[1:])
        elif not said:
            if talk.live_turn() is not None:
                talk.resume()
        elif parse_verdict(said) is not None and (asked := talk.open_questions()) and is_yes_no_question(asked[0]):
            talk.answer(said)
        else:
            talk.send(said.removeprefix("/"))
    except HoldfastError as error:
        print_error(error)
        if line is not None and talk.live_turn() is not None and not talk.open_questions():
            print_note("The turn is still live. Press Enter to continue it, or type /stop to end it.")
        return exit_code(error)
    except (BrokenPipeError, ChatExit):
        raise
    except Exception as error:  # noqa: BLE001  # Errors of tools, models and tool sources do not end the chat.
        print_error(error)
        return exit_code(HoldfastError())
    return OK


def _read_lines(say: Sequence[str] | None) -> Iterator[str]:
    if say is not None:
        yield from say
    elif sys.stdin is not None:  # The parent process closed it.
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        yield from sys.stdin


def _prompt_lines() -> Iterator[str]:
    with suppress(ImportError):
        import readline  # noqa: F401  # Arrow keys and history.
    prompt = PROMPT if sys.stdout.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return
        except UnicodeDecodeError:
            print_note("holdfast: This input is not text. Nothing was sent.", "red")


def _exit_if_stuck(code: int) -> None:
    """Exit at once if a stopped tool is still running in its thread, which would keep the process alive."""
    late = time.monotonic() + GRACE_SECONDS
    at_work = [one for one in threading.enumerate() if one.name.startswith(STEPS)]
    for thread in at_work:
        thread.join(max(0.0, late - time.monotonic()))
    if any(thread.is_alive() for thread in at_work):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


class ChatExit(Exception):
    """The user wants to leave the chat."""


class ChatCommand(NamedTuple):
    """A chat command: its function, its arguments and its help text."""

    run: Callable[[ChatSession, str], None]
    arguments: str
    help: str


def run_command(talk: ChatSession, line: str) -> None:
    """Run a command, given its line without the slash."""
    name, _, rest = line.partition(" ")
    word = CHAT_COMMANDS.get(name.casefold())
    if word is None:
        raise InvalidValue(f"Unknown command /{name:.40}. Commands: {', '.join(f'/{one}' for one in CHAT_COMMANDS)}.")
    word.run(talk, rest.strip())


def _stop_turn(talk: ChatSession, rest: str) -> None:
    if not talk.stop():
        print_note("No turn is live.")


def _reset_session(talk: ChatSession, rest: str) -> None:
    session = talk.session()
    if session is None:
        print_note("There are no messages yet.")
        return
    talk.stop()
    session.reset()
    print_note("Started a new conversation. Earlier messages stay in the journal and are not shown to the model.")


def _show_stack(talk: ChatSession, rest: str) -> None:
    frames = talk.hf.index.stack(talk.scope)
    if frames:
        FrameForest(talk.hf, talk.scope, frames).show(talk.hf.index.resume_actor(talk.scope).pending)
    else:
        print_note("No frame is live.")


def _show_pack(talk: ChatSession, rest: str) -> None:
    if rest not in ("", "why"):
        raise InvalidValue("Write /pack, or /pack why.")
    pack = _require_session(talk).pack()
    show_pack(pack)
    if rest:
        show_decisions(pack.decisions)


def _show_why(talk: ChatSession, rest: str) -> None:
    if not rest:
        raise InvalidValue("Write some words of a message, as in /why allergic to nuts.")
    show_trace(_require_session(talk).why(rest))


def _require_session(talk: ChatSession) -> Session:
    session = talk.session()
    if session is None:
        raise InvalidValue("There are no messages yet.")
    return session


def _show_help(talk: ChatSession, rest: str) -> None:
    rows = [(f"/{name} {word.arguments}".rstrip(), word.help) for name, word in CHAT_COMMANDS.items()]
    rows += [
        ("Ctrl-C", "stop a reply and keep its text; at the prompt: leave, as Ctrl-D does"),
        ("Enter", "continue an interrupted turn"),
        ("//…", "send a message that begins with a slash"),
    ]
    console().print(facts_table(rows))
    print_line(
        "Anything else is sent to the agent, and joins a turn that waits. A plain yes or no answers an open question."
    )


def _quit_chat(talk: ChatSession, rest: str) -> None:
    raise ChatExit


CHAT_COMMANDS = {
    "answer": ChatCommand(ChatSession.answer, "yes|no|TEXT|JSON", "answer the open question"),
    "stop": ChatCommand(_stop_turn, "", "stop the live turn"),
    "reset": ChatCommand(_reset_session, "", "start a new conversation"),
    "stack": ChatCommand(_show_stack, "", "show the live frames and unfinished work"),
    "pack": ChatCommand(_show_pack, "[why]", "show the context that the model would get now"),
    "why": ChatCommand(_show_why, "TEXT", "explain why the model was or was not shown something"),
    "help": ChatCommand(_show_help, "", "show this help"),
    "quit": ChatCommand(_quit_chat, "", "leave"),
}


def _answer_by_rules(pack: RenderablePack) -> Any:
    """Answer as a model by a few rules, depending only on the pack."""
    seen = read_pack(pack)
    refund, remember = _REFUND.search(seen.user), _REMEMBER.fullmatch(seen.user)
    if seen.messages[-1].tool_results or seen.user.lower().startswith("call "):
        return echo(pack)
    if refund is not None:
        return call("refund", order=int(refund[1]), amount=int(refund[2]))
    if remember is not None:
        return call("remember", text=remember[1])
    return f"You said: {seen.user}\n(Shown to this script: messages {len(seen.messages)}, tokens {seen.tokens}.)"


def make_practice_tools(hf: Holdfast, session: str, *, slow: bool) -> list[AnyTool]:
    """Return two tools: a slow one that must not run twice by accident, and one that needs approval."""

    @tool
    def refund(order: int, amount: int, call: ToolCall) -> str:
        """Pretend to pay an order back. No money is moved."""
        for second in range(REFUND_SECONDS if slow else 0):
            call.progress(f"waiting for the bank, {REFUND_SECONDS - second} s to go")
            time.sleep(1)
        return f"{amount} were paid back for order {order}. (Only pretended.)"

    @tool(needs_approval=True, if_interrupted="retry")
    def remember(text: str, call: ToolCall) -> str:
        """Keep a note in the state of this conversation."""
        hf.state(session).write(f"note/{call.key}", text, key=call.key)
        return f"Kept: {text}"

    return [refund, remember]


def load_tools(names: Sequence[str]) -> list[Any]:
    """Load the named tools, in order. A name may stand for a list of tools."""
    loaded = map(_load_tool, names)
    return [one for some in loaded for one in (some if isinstance(some, list | tuple) else [some])]


def _load_tool(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidValue(f"{name!r:.80} is not a tool. {TOOL_NAME_HELP}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded: Any = importlib.import_module(module)
    except Exception as error:
        # The module's code may raise anything; its author needs the reason, not holdfast's stack.
        raise InvalidValue(f"{module} cannot be imported: {type(error).__name__}: {error}. {TOOL_NAME_HELP}") from error
    for part in attribute.split("."):
        if not hasattr(loaded, part):
            raise InvalidValue(f"{module} has no {attribute}. {TOOL_NAME_HELP}")
        loaded = getattr(loaded, part)
    return loaded
