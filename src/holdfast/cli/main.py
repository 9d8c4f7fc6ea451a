"""`holdfast`: the table of commands, and what becomes of errors.

Commands are named here and imported when they are run, so that `holdfast --help` costs
little. Whatever goes wrong is one line that says what to do, and an exit code that a
script can act on; a traceback means a defect in holdfast.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from holdfast.errors import Corrupt, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.version import __version__

OK = 0
DAMAGED = 1
REFUSED = 2
UNAVAILABLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "It worked.",
    DAMAGED: "The journal is damaged: `verify` found something, or stored data could not be read.",
    REFUSED: "The input was bad or the call was refused; nothing was written.",
    UNAVAILABLE: "The journal is not available now, or the outcome is unknown. Try again.",
    INTERRUPTED: "Stopped with Ctrl-C.",
    BROKEN_PIPE: "Whoever read the output went away, as `head` does.",
}


class Command(NamedTuple):
    """One row of the table: where the command lives, what it does, its arguments, and what else to know."""

    where: str
    help: str
    arguments: str = "[PATH]"
    more: str = ""


COMMANDS = {
    "log": Command("show:log", "Show what happened, and follow it."),
    "stack": Command(
        "stack:stack",
        "Show the live frames as a tree.",
        "[PATH] [SCOPE]",
        "Only looks. Without a SCOPE, every scope with live frames is shown. Where HOLDFAST_URL names the journal, "
        "write --scope SCOPE.",
    ),
    "sessions": Command("sessions:sessions", "Show the conversations with their titles, sizes and costs."),
    "messages": Command(
        "messages:messages",
        "Show what was said, oldest first.",
        "[PATH] SESSION",
        "Only looks. A result and its call have the same mark. Texts are shortened unless --full is given.",
    ),
    "fork": Command(
        "messages:fork",
        "Begin a new thread that goes on after a message.",
        "[PATH] SESSION",
        "Nothing is copied, and the old thread stays as it is.",
    ),
    "questions": Command("questions:questions", "Show the questions that wait for an answer."),
    "answer": Command(
        "answer:answer",
        "Answer a question by its id, or with its link token.",
        "[PATH] QUESTION",
        "The work goes on when its owner runs again. One question has one answer; the same one again changes nothing.",
    ),
    "verify": Command(
        "admin:verify",
        "Check every chain, version, row, reference and artifact.",
        more="Ends with 0 if everything is as it was written, and with 1 if anything is not.",
    ),
    "rebuild": Command("admin:rebuild", "Make every projection anew from the events, while others go on."),
    "backup": Command(
        "admin:backup",
        "Copy the journal while others write.",
        "[PATH] TARGET",
        "The copy appears whole or not at all.",
    ),
    "restore": Command(
        "admin:restore",
        "Make a journal of a backup, whole or up to a cursor.",
        "BACKUP [PATH]",
        "PATH is the new journal and must not exist yet.",
    ),
    "export": Command(
        "transfer:export",
        "Write the whole journal as JSON lines, or one conversation.",
        "[PATH] [TARGET]",
        "With --session, the conversation of that session in a provider's form, on standard output without a TARGET.",
    ),
    "import": Command(
        "transfer:import_",
        "Make a journal of an export, or add a conversation to a session.",
        "[PATH] SOURCE",
        "Without --session, PATH is the new journal, or an empty one. With it, the session is made if it is not there, "
        "as is the journal; what is broken in the conversation is repaired and told. All or nothing is imported.",
    ),
    "erase": Command(
        "admin:erase",
        "Remove all content that belongs to a subject, for good.",
        "[PATH] SUBJECT",
        "Chains still verify. Backups and exports made before keep the content: erase there as well.",
    ),
    "doctor": Command(
        "doctor:doctor",
        "Show versions, settings, sizes and anything to worry about.",
        more="Without a journal, a temporary one is tried. Warnings do not change the exit code.",
    ),
    "demo": Command(
        "demo:demo",
        "Kill an agent while it pays money back, resume it, and pay exactly once.",
        "",
        "Takes a few seconds, in a temporary folder, and leaves nothing behind.",
    ),
}


def make_app() -> App:
    """The application with its commands, none of them imported yet."""
    app = App(
        name="holdfast",
        help="Durable state for LLM agents: look into a journal, read its conversations, answer its questions, "
        "check it, copy it, erase from it.\n\n"
        "PATH is a journal's file. It may be left out when HOLDFAST_URL names one.",
        version=__version__,
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    for position, (name, command) in enumerate(COMMANDS.items()):
        app.command(
            f"holdfast.cli.{command.where}",
            name=name,
            help=command.help,
            sort_key=position,
            usage=f"Usage: holdfast {name} [OPTIONS] {command.arguments}".rstrip(),
            help_epilogue=command.more or None,
        )
    return app


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        code = make_app()(list(arguments))
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(f"{error} Try `holdfast --help`.", REFUSED)
    except HoldfastError as error:
        return _fail(str(error), exit_code(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error.strerror or error} ({error.filename or 'input or output'}).", UNAVAILABLE)
    return code if isinstance(code, int) else OK


def exit_code(error: HoldfastError) -> int:
    """What a script may conclude from an error."""
    if isinstance(error, Corrupt):
        return DAMAGED
    return UNAVAILABLE if isinstance(error, Unavailable | OutcomeUnknown) else REFUSED


def _fail(message: str, code: int) -> int:
    from holdfast.cli.output import printable

    # Standard error may be closed as well; the code still tells.
    with suppress(OSError):
        sys.stderr.write(f"holdfast: {printable(' '.join(message.split()))}\n")
    return code


def _discard_output() -> None:
    """Nobody reads any more: without this, Python complains when it flushes at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> None:
    """The entry point."""
    if sys.stdout is None:
        # Closed by whoever started us: there is nobody to talk to, and that is no error.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal can show every character, and none of them is worth a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
