"""`holdfast chat`: an agent in the terminal. Kill it anywhere and start it again: it goes on.

Whatever goes wrong in a turn is one line, and the chat goes on. What is piped into it is taken line by line, without
a prompt and without colours, so that it can be used by scripts.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.aio.threads import STEPS
from holdfast.cli.chat_commands import Left, run_command
from holdfast.cli.chat_practice import NO_KEY, TRY, practice_model, practice_tools
from holdfast.cli.chat_tools import tools_named
from holdfast.cli.chat_turns import Talk, verdict
from holdfast.cli.chat_words import PROMPT, fail, is_verdict
from holdfast.cli.main import INTERRUPTED, OK, exit_code
from holdfast.cli.opening import VARIABLE, Tenant
from holdfast.cli.output import note
from holdfast.cli.sessions import Thread
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.connect import model_for
from holdfast.errors import HoldfastError
from holdfast.records.scope import MAIN_THREAD

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
    """Talk with an agent in the terminal; kill it, start again, and it goes on."""
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
    """Until nothing more is said; gives what a script may conclude."""
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
    """One line, whatever comes of it; None is the beginning."""
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
    except Exception as error:  # noqa: BLE001  # A tool, a model or a source of them: nothing of theirs ends the chat.
        fail(error)
        return exit_code(HoldfastError())
    return OK


def _heed(talk: Talk, line: str) -> None:
    """What a line means: a command, an answer, or something to say."""
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
    """Whether the question on the screen is answered with yes or no."""
    asked = talk.questions()
    return bool(asked) and is_verdict(asked[0])


# where lines come from


def _given(say: Sequence[str] | None) -> Iterator[str]:
    if say is not None:
        yield from say
    elif sys.stdin is not None:  # Closed by whoever started us.
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        yield from sys.stdin


def _terminal() -> Iterator[str]:
    """Lines as they are typed, until Ctrl-D or Ctrl-C."""
    with suppress(ImportError):
        import readline  # noqa: F401  # Arrow keys and what was typed before.
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
    """A tool that was stopped may go on in its thread, and would keep the process for as long as it likes."""
    late = time.monotonic() + GRACE_SECONDS
    at_work = [one for one in threading.enumerate() if one.name.startswith(STEPS)]
    for thread in at_work:
        thread.join(max(0.0, late - time.monotonic()))
    if any(thread.is_alive() for thread in at_work):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
