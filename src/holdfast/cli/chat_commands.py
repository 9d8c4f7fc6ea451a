"""What can be typed in a chat that is not said to the agent: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.cli.chat_turns import Talk
from holdfast.cli.output import console, facts_table, note, say
from holdfast.cli.pack_text import show_decisions, show_pack
from holdfast.cli.stack import forest_of
from holdfast.cli.why import show_trace
from holdfast.client.session import Session
from holdfast.errors import InvalidValue


class Left(Exception):
    """Somebody wants to leave."""


class Word(NamedTuple):
    """What a command does, and how it is written."""

    run: Callable[[Talk, str], None]
    arguments: str
    help: str


def run_command(talk: Talk, line: str) -> None:
    """A line without its slash."""
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
