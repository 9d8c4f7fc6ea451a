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
from holdfast.cli.chat_session import PROMPT, Talk, fail, is_verdict, verdict
from holdfast.cli.main import INTERRUPTED, OK, exit_code
from holdfast.cli.open import VARIABLE, Tenant
from holdfast.cli.output import console, facts_table, note, say
from holdfast.cli.pack import show_decisions, show_pack, show_trace
from holdfast.cli.sessions import Thread
from holdfast.cli.stack import forest_of
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.client.session import Session
from holdfast.connect import model_for
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.model.scripted import Scripted, call, echo, look
from holdfast.records.models import Shown
from holdfast.records.scope import MAIN_THREAD
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.tool import AnyTool, tool

AGENT = "chat"
JOURNAL = "agent.db"
MODEL_VARIABLE = "HOLDFAST_MODEL"
SCRIPTED = "scripted"
GRACE_SECONDS = 1.0
KEYS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5"}


def chat(
    path: Annotated[
        str,
        Parameter(
            name="PATH", env_var=VARIABLE, help="The journal: a path or sqlite:///path. It is made if it is not there."
        ),
    ] = JOURNAL,
    /,
    *,
    session: Annotated[str, Parameter(help="The session's id.")] = "chat",
    model: Annotated[
        str | None,
        Parameter(
            env_var=MODEL_VARIABLE,
            show_default=False,
            help="Such as openai:gpt-5-mini, anthropic:claude-sonnet-4-5, openai:NAME@ADDRESS or scripted. Without it, "
            f"{MODEL_VARIABLE}; else what OPENAI_API_KEY or ANTHROPIC_API_KEY is for; else scripted, without a key.",
        ),
    ] = None,
    system: Annotated[str | None, Parameter(show_default=False, help="What the model is told to be.")] = None,
    tools: Annotated[
        list[str] | None,
        Parameter(
            negative=(), show_default=False, help="Tools as module:name; a list of them will do. May be repeated."
        ),
    ] = None,
    say: Annotated[
        list[str] | None,
        Parameter(negative=(), show_default=False, help="Say this and end, instead of asking. May be repeated."),
    ] = None,
    thread: Thread = None,
    tenant: Tenant = None,
) -> int:
    """Talk with an agent in the terminal; kill it, start again, and it continues."""
    given = tools_named(tools or [])
    chosen = model or next((name for key, name in KEYS.items() if os.environ.get(key)), SCRIPTED)
    typed = say is None and sys.stdin is not None and sys.stdin.isatty()
    with open_journal(path) as whole:
        hf = whole if tenant is None else whole.tenant(tenant)
        agent = _agent(hf, chosen, system, given, session, slow=typed)
        talk = Talk(hf, agent, session, thread or MAIN_THREAD)
        note(f"{session} in {path}, model {chosen}. /help says what can be typed.")
        if chosen == SCRIPTED and not given:
            note(NO_KEY + TRY)
        code = _talked(talk, _terminal() if typed else _given(say), typed=typed)
    _leave_if_stuck(code)
    return code


def _agent(hf: Holdfast, model: str, system: str | None, tools: list[Any], session: str, *, slow: bool) -> Any:
    if model != SCRIPTED:
        return hf.agent(AGENT, model=model_for(model), system=system, tools=tools)
    if tools:
        return hf.agent(AGENT, model=model_for(SCRIPTED), system=system, tools=tools)
    made = practice_tools(hf, session, slow=slow)
    return hf.agent(AGENT, model=practice_model(slow=slow), system=system, tools=made)


# the conversation


def _talked(talk: Talk, lines: Iterator[str], *, typed: bool) -> int:
    """Run the chat until its input ends; return the exit code."""
    code = OK
    try:
        code = _done(talk, None) or code
        for line in lines:
            try:
                code = _done(talk, line) or code
            except Left:
                break
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        note("Left. What it was at goes on when the chat is started again.")
        return INTERRUPTED
    return OK if typed else code


def _done(talk: Talk, line: str | None) -> int:
    """Handle one line and report its errors; None begins the chat. Return the exit code."""
    try:
        if line is None:
            talk.begin()
        else:
            _heed(talk, line.strip())
    except HoldfastError as error:
        fail(error)
        if line is not None and talk.live() is not None and not talk.questions():
            note("The turn is still live. Press Enter to go on with it, or /stop it.")
        return exit_code(error)
    except (BrokenPipeError, Left):
        raise
    except Exception as error:  # noqa: BLE001  # Errors of tools, models and tool sources do not end the chat.
        fail(error)
        return exit_code(HoldfastError())
    return OK


def _heed(talk: Talk, line: str) -> None:
    """Interpret a line: a command, an answer, or a message to the agent."""
    if line.startswith("/") and not line.startswith("//"):
        run_command(talk, line[1:])
    elif not line:
        if talk.live() is not None:
            talk.go_on()
    elif verdict(line) is not None and _is_asked(talk):
        talk.answer(line)
    else:
        talk.say(line.removeprefix("/"))


def _is_asked(talk: Talk) -> bool:
    """Return True if the oldest open question is answered with yes or no."""
    asked = talk.questions()
    return bool(asked) and is_verdict(asked[0])


# input


def _given(say: Sequence[str] | None) -> Iterator[str]:
    if say is not None:
        yield from say
    elif sys.stdin is not None:  # The parent process closed it.
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        yield from sys.stdin


def _terminal() -> Iterator[str]:
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
            note("holdfast: This cannot be read as text. Nothing was said.", "red")


def _leave_if_stuck(code: int) -> None:
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


class Left(Exception):
    """The user wants to leave the chat."""


class Word(NamedTuple):
    """A chat command: its function, its arguments and its help text."""

    run: Callable[[Talk, str], None]
    arguments: str
    help: str


def run_command(talk: Talk, line: str) -> None:
    """Run a command, given its line without the slash."""
    name, _, rest = line.partition(" ")
    word = WORDS.get(name.casefold())
    if word is None:
        raise InvalidValue(f"There is no /{name:.40}. There are: {', '.join(f'/{one}' for one in WORDS)}.")
    word.run(talk, rest.strip())


def _answer(talk: Talk, rest: str) -> None:
    talk.answer(rest)


def _stop(talk: Talk, rest: str) -> None:
    if not talk.stop():
        note("No turn is live.")


def _reset(talk: Talk, rest: str) -> None:
    session = talk.session()
    if session is None:
        note("Nothing was said yet.")
        return
    talk.stop()
    session.reset()
    note("The conversation begins anew. What was said before stays in the journal and is shown to no model.")


def _stack(talk: Talk, rest: str) -> None:
    frames = talk.hf.index.stack(talk.scope)
    if frames:
        forest_of(talk.hf, talk.scope, frames).show(talk.hf.index.resume_actor(talk.scope).pending)
    else:
        note("No frame is live.")


def _pack(talk: Talk, rest: str) -> None:
    if rest not in ("", "why"):
        raise InvalidValue("Write /pack, or /pack why.")
    pack = _said(talk).pack()
    show_pack(pack)
    if rest:
        show_decisions(pack.decisions)


def _why(talk: Talk, rest: str) -> None:
    if not rest:
        raise InvalidValue("Why what? Write some words of what was said, as in /why allergic to nuts.")
    show_trace(_said(talk).why(rest))


def _said(talk: Talk) -> Session:
    session = talk.session()
    if session is None:
        raise InvalidValue("Nothing was said yet.")
    return session


def _help(talk: Talk, rest: str) -> None:
    rows = [(f"/{name} {word.arguments}".rstrip(), word.help) for name, word in WORDS.items()]
    rows += [
        ("Ctrl-C", "while it answers: stop, and keep what was shown; at the prompt: leave, as Ctrl-D does"),
        ("Enter", "alone: go on with a turn that was left"),
        ("//…", "say something that begins with a slash"),
    ]
    console().print(facts_table(rows))
    say("Anything else is said to the agent, and joins a turn that waits. A plain yes or no answers what it asks.")


def _quit(talk: Talk, rest: str) -> None:
    raise Left


WORDS = {
    "answer": Word(_answer, "yes|no|TEXT|JSON", "answer the question that is open"),
    "stop": Word(_stop, "", "end the turn that is live"),
    "reset": Word(_reset, "", "begin the conversation anew"),
    "stack": Word(_stack, "", "show the live frames, and what was begun and not finished"),
    "pack": Word(_pack, "[why]", "show what the model would be shown now"),
    "why": Word(_why, "TEXT", "show why the model knows something, or not"),
    "help": Word(_help, "", "show this"),
    "quit": Word(_quit, "", "leave"),
}


NO_KEY = "A scripted model answers. It needs no key and knows two things: "
TRY = 'try "refund order 17, 240" (then kill this terminal and start again) or "remember that I like tea".'
PAUSE = 0.02
SECONDS = 10
_REFUND = re.compile(r"\brefund\b\D*([0-9]{1,9})\D+([0-9]{1,9})", re.IGNORECASE)
_REMEMBER = re.compile(r"\s*remember(?:\s+that)?\s+(.+)", re.IGNORECASE | re.DOTALL)


def practice_model(*, slow: bool) -> Scripted:
    """Return a model that answers by a few rules, depending only on the pack it is shown."""
    return Scripted(_answered, pause=PAUSE if slow else 0.0)


def _answered(pack: Shown) -> Any:
    seen = look(pack)
    refund, remember = _REFUND.search(seen.user), _REMEMBER.fullmatch(seen.user)
    if seen.messages[-1].tool_results or seen.user.lower().startswith("call "):
        return echo(pack)
    if refund is not None:
        return call("refund", order=int(refund[1]), amount=int(refund[2]))
    if remember is not None:
        return call("remember", text=remember[1])
    return f"You said: {seen.user}\n(Shown to this script: messages {len(seen.messages)}, tokens {seen.tokens}.)"


def practice_tools(hf: Holdfast, session: str, *, slow: bool) -> list[AnyTool]:
    """Return two tools: a slow one that must not run twice by accident, and one that needs approval."""

    @tool
    def refund(order: int, amount: int, call: ToolCall) -> str:
        """Pretend to pay an order back. No money is moved."""
        for second in range(SECONDS if slow else 0):
            call.progress(f"waiting for the bank, {SECONDS - second} s to go")
            time.sleep(1)
        return f"{amount} were paid back for order {order}. (Only pretended.)"

    @tool(needs_approval=True, if_interrupted="retry")
    def remember(text: str, call: ToolCall) -> str:
        """Keep a note in the state of this conversation."""
        hf.state(session).write(f"note/{call.key}", text, key=call.key)
        return f"Kept: {text}"

    return [refund, remember]


WRITE = "Write module:name, as in shop:refund for refund in shop.py, or the name of a list of tools."


def tools_named(names: Sequence[str]) -> list[Any]:
    """Load the named tools, in order. A name may stand for a list of tools."""
    found: list[Any] = []
    for name in names:
        one = _found(name)
        found += one if isinstance(one, list | tuple) else [one]
    return found


def _found(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidValue(f"{name!r:.80} names no tool. {WRITE}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded: Any = importlib.import_module(module)
    except Exception as error:
        # The module's code may raise anything; its author needs the reason, not holdfast's stack.
        raise InvalidValue(f"{module} cannot be imported: {type(error).__name__}: {error}. {WRITE}") from error
    for part in attribute.split("."):
        if not hasattr(loaded, part):
            raise InvalidValue(f"{module} has no {attribute}. {WRITE}")
        loaded = getattr(loaded, part)
    return loaded
