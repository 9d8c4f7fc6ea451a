"""What a chat shows: what was said, what is said right now, what tools do, and what is asked.

All of it was written by users, models and tools: every piece is made printable before it is shown. Nothing that was
shown is shown a second time, however often the journal tells of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from holdfast.ambient import SystemClock
from holdfast.cli.message_text import content_text, result_text
from holdfast.cli.output import brief, console, note, printable, whole
from holdfast.cli.tree import state_of, words
from holdfast.core.call_words import call_words
from holdfast.flow.turn.turns import STOPPED
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.resume import DO_NOT, RUN_AGAIN, QuestionInfo
from holdfast.runtime.reply import AgentEvent

SHORT = 200
PROMPT = "> "
KEPT = "Stopped. What was shown is kept in the conversation."
ERASED = "(erased)"
VERDICTS = (["approve", "deny"], [RUN_AGAIN, DO_NOT])
"""What is offered where a yes or a no is asked for."""


def show(text: str, style: str = "") -> None:
    """Some lines of the conversation."""
    console().print(Text(whole(text), style=style), soft_wrap=True)


def fail(error: BaseException) -> None:
    """What went wrong, in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    note(f"holdfast: {said}", "red")


class Hearing:
    """What happens in a conversation, shown as it comes."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._said = ""
        self._own: list[str] = []
        self._names: dict[str, ToolCallRequest] = {}
        self._kept = False

    def begin(self, messages: Sequence[Message], at: tuple[int, int]) -> None:
        """Show what was said before; `at` says up to where in the journal, of the line and of the actor."""
        self._seen = at
        for message in messages:
            self._names.update((call.id, call) for call in message.tool_calls)
            show_message(message)

    @property
    def place(self) -> str:
        """Up to where everything was shown, as `agent.tail` takes it."""
        return f"{self._seen[0]}.{self._seen[1]}"

    def typed(self, text: str) -> None:
        """Something that stands on the screen because somebody typed it there."""
        self._own.append(text)

    def heard(self, event: AgentEvent) -> None:
        """Show what happened, unless it was shown before."""
        if event.id is not None and not self._is_new(event.id):
            return
        shown = getattr(self, f"_{event.kind}", None)
        if shown is not None:
            shown(event)

    def over(self) -> None:
        """Nothing more comes for now: the next thing begins on a line of its own."""
        if self._said:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._said = ""

    def _is_new(self, id: str) -> bool:
        line, _, actor = id.partition(".")
        at = int(line), int(actor)
        if at[0] <= self._seen[0] and at[1] <= self._seen[1]:
            return False
        self._seen = at
        return True

    # one for each kind of event

    def _message(self, event: AgentEvent) -> None:
        if event.text in self._own:
            self._own.remove(event.text)
            return
        self.over()
        show(f"{PROMPT}{event.text}", "bold")

    def _delta(self, event: AgentEvent) -> None:
        if event.data.get("kind") == "text" and event.text:
            self._said += event.text
            sys.stdout.write(whole(event.text))
            sys.stdout.flush()

    def _reset(self, event: AgentEvent) -> None:
        if self._said:
            self.over()
            note("(That was cut off. The reply begins anew.)")

    def _reply(self, event: AgentEvent) -> None:
        if event.text.strip() != self._said.strip():
            if not event.text.startswith(self._said):
                self.over()  # Something else was heard of it than what is kept, so that is shown whole.
            rest = event.text[len(self._said) :]
            sys.stdout.write(whole(rest))
            self._said += rest
        self.over()
        self._kept = bool(event.data.get("partial"))
        for call in event.data.get("calls", ()):
            self._names[call["id"]] = ToolCallRequest(**call)

    def _tool(self, event: AgentEvent) -> None:
        self.over()
        request = self._names.get(event.data.get("call", ""))
        again = "  (again)" if event.data.get("attempt", 1) > 1 else ""
        show(f"→ {event.name if request is None else call_words(request)}{again}", "magenta")

    def _progress(self, event: AgentEvent) -> None:
        self.over()
        show(f"  … {brief(event.text, SHORT)}", "dim")

    def _result(self, event: AgentEvent) -> None:
        self.over()
        for one in event.data.get("results", ()):
            show_result(one["result"], failed=bool(one["is_error"]))

    def _stopped(self, event: AgentEvent) -> None:
        self.over()
        if self._kept:
            note(KEPT, "yellow")
        elif event.text in ("", STOPPED):
            note("Stopped.", "yellow")
        else:
            note(f"Stopped: {event.text}", "yellow")
        self._kept = False


def show_result(result: Any, *, failed: bool) -> None:
    """What a tool gave back, on one line."""
    show(f"← {'error: ' if failed else ''}{brief(result_text(result), SHORT)}", "red" if failed else "cyan")


def show_message(message: Message) -> None:
    """What was said some time ago."""
    text = ERASED if message.erased else content_text(message.content or "")
    if message.role == "user":
        show(f"{PROMPT}{text}", "bold")
    elif text and message.role == "assistant":
        show(text + ("  (stopped here)" if message.partial else ""))
    for call in message.tool_calls:
        show(f"→ {ERASED if message.erased else call_words(call)}", "magenta")
    for result in message.tool_results:
        show_result(ERASED if message.erased else result.result, failed=result.is_error or result.interrupted)


# questions


def is_verdict(question: QuestionInfo) -> bool:
    """Whether it is answered with a yes or a no."""
    return question.call is not None or question.options in VERDICTS


def show_question(question: QuestionInfo) -> None:
    """What is asked, and how to answer it."""
    asked = words(question.reason, "(no reason given)")
    if question.until is not None:
        show(f"… {asked} ({state_of(question, SystemClock().now_ms())}; press Enter after that)", "yellow")
        return
    show(f"? {asked} [{_offered(question)}]", "bold yellow")


def _offered(question: QuestionInfo) -> str:
    if is_verdict(question):
        return "yes/no"
    options = question.options if isinstance(question.options, list) else []
    return "/".join(map(str, options)) if options else "/answer …"


def how_to_answer(question: QuestionInfo) -> str:
    """What to type."""
    if question.call is not None:
        return "/answer yes runs it again; /answer no does not; /answer no JSON says what came of it when it ran."
    if is_verdict(question):
        return "/answer yes lets it run; /answer yes JSON with other arguments; /answer no WHY does not."
    return f"/answer {printable(_offered(question)).removeprefix('/answer ')} gives it that answer: words or JSON."
