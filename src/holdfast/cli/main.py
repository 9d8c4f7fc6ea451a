"""`holdfast`: the application, its exit codes, and its error output.

Commands are listed in a table and imported only when run, so `holdfast --help` stays fast. Every
error is one line that says what to do, with an exit code that a script can act on; a traceback
means a defect in holdfast.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from holdfast.cli.commands import COMMANDS, DEFAULTS, GROUPS
from holdfast.errors import Corrupt, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.version import __version__

OK = 0
DAMAGED = 1
REFUSED = 2
UNAVAILABLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "Success.",
    DAMAGED: "The journal is damaged: `verify` found something, or stored data could not be read.",
    REFUSED: "The input was bad or the call was refused; nothing was written. In `chat`, a message got no answer.",
    UNAVAILABLE: "The journal is not available now, or the outcome is unknown. Try again.",
    INTERRUPTED: "Stopped with Ctrl-C.",
    BROKEN_PIPE: "The reader of the output closed the pipe, as `head` does.",
}


def make_app() -> App:
    """Build the application with its commands, none of them imported yet."""
    app = App(
        name="holdfast",
        help="Durable state for LLM agents: read a journal's events, sessions and state, answer questions, verify, "
        "back up and erase.\n\n"
        "PATH is a journal's file. It may be left out when HOLDFAST_URL names one.",
        version=__version__,
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    groups: dict[str, App] = {}
    for position, (name, command) in enumerate(COMMANDS.items()):
        group, _, verb = name.rpartition(" ")
        if group and group not in groups:
            usage = f"Usage: holdfast {group} COMMAND [OPTIONS]"
            groups[group] = App(name=group, help=GROUPS[group], sort_key=position, usage=usage)
            app.command(groups[group])
        groups.get(group, app).command(
            f"holdfast.cli.{command.where}",
            name=verb,
            help=command.help,
            sort_key=position,
            usage=f"Usage: holdfast {name} [OPTIONS] {command.arguments}".rstrip(),
            help_epilogue=command.more or None,
        )
    return app


def find_command(app: App, name: str) -> App:
    """Return a command by its name, which has two words for a command of a group."""
    for word in name.split():
        app = app[word]
    return app


def _expand_group(arguments: Sequence[str]) -> list[str]:
    """Insert a group's default command if the group is named alone."""
    first, *rest = arguments or ("",)
    named = rest and (rest[0] in ("--help", "-h") or f"{first} {rest[0]}" in COMMANDS)
    return list(arguments) if named or first not in DEFAULTS else [first, DEFAULTS[first], *rest]


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = make_app()(_expand_group(arguments))
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(f"{error} Try `holdfast --help`.", REFUSED)
    except HoldfastError as error:
        return _fail(str(error), exit_code(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout is gone, and Python would complain when flushing at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error.strerror or error} ({error.filename or 'input or output'}).", UNAVAILABLE)
    return code if isinstance(code, int) else OK


def exit_code(error: HoldfastError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, Corrupt):
        return DAMAGED
    return UNAVAILABLE if isinstance(error, Unavailable | OutcomeUnknown) else REFUSED


def _fail(message: str, code: int) -> int:
    from holdfast.cli.output import escape_text

    # Standard error may be closed too; the exit code still reports the failure.
    with suppress(OSError):
        sys.stderr.write(f"holdfast: {escape_text(' '.join(message.split()))}\n")
    return code


def run() -> None:
    """Run the command, and exit with its code."""
    if sys.stdout is None:
        # The parent process closed stdout: discard the output, this is not an error.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot show must not raise a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
