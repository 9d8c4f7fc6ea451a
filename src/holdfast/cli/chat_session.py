"""A chat session at the terminal: its turns, and how they are shown.

All state is in the journal, so a chat that is killed and started again continues the same turn. Messages were
written by users, models and tools: every piece of text is escaped before it is shown. Nothing is shown twice,
however often the journal reports it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
from rich.text import Text

from holdfast.cli.messages import content_text, result_text
from holdfast.cli.output import brief, console, note, printable, whole
from holdfast.cli.stack import state_of, words
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.core.wire.tools import call_words
from holdfast.errors import HoldfastError, InvalidValue, QuestionNotFound, Refused, SessionNotFound
from holdfast.flow.turns.turns import ACTOR, STOPPED
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.recovery import DO_NOT, RUN_AGAIN, FrameInfo, QuestionInfo
from holdfast.records.scope import Address, Scope
from holdfast.runtime.agent import Agent
from holdfast.runtime.reply import AgentEvent
from holdfast.system import SystemClock

SHOWN = 6
PATIENCE_SECONDS = 1.0
YES = ("yes", "y", "approve", RUN_AGAIN)
NO = ("no", "n", "deny", DO_NOT)


class Talk:
    """A conversation with an agent at a terminal."""

    def __init__(self, hf: Holdfast, agent: Agent[Any], id: str, thread: str) -> None:
        self.hf, self.agent, self.id, self.thread = hf, agent, id, thread
        self.scope = Scope.actor(ACTOR, session=id, thread=thread).text
        self._hearing = Hearing()

    # state

    def session(self) -> Session | None:
        """Return the session; None if it does not exist yet."""
        try:
            return self.hf.session(self.id, thread=self.thread, create=False)
        except SessionNotFound:
            return None

    def live(self) -> FrameInfo | None:
        """Return the root frame of the turn that has not ended, if there is one."""
        return next((one for one in self.hf.index.stack(self.scope) if one.turn is not None), None)

    def questions(self) -> list[QuestionInfo]:
        """Return the unanswered questions of the turn, oldest first."""
        asked = [one.question.id for one in self.hf.index.stack(self.scope) if one.question and not one.question.within]
        found = []
        for id in asked:
            try:
                found.append(self.hf.index.question(id))
            except QuestionNotFound:
                continue  # It was just answered and resumed.
        return sorted((one for one in found if not one.answered), key=lambda one: (one.suspended_at, one.id))

    # actions

    def begin(self) -> None:
        """Show the end of the conversation, and resume an unfinished turn."""
        at = self._newest(Scope.thread(self.id, self.thread)), self._newest(self.scope)
        session = self.session()
        self._hearing.begin([] if session is None else session.messages(SHOWN), at)
        if self.live() is not None:
            note("A turn was left. It goes on.")
            self.go_on()

    def _newest(self, stream: Address) -> int:
        event = next(iter(self.hf.journal.events(stream, backwards=True)), None)
        return 0 if event is None else event.version

    def say(self, text: str) -> None:
        """Send a message and show what follows. A message to a waiting turn joins that turn."""
        self._hearing.typed(text)
        self._stream(text)

    def go_on(self) -> None:
        """Resume the live turn."""
        try:
            self._stream(None)
        except Refused:
            if self.live() is not None:
                raise
            # Another process has ended the turn in the meantime.
            for event in self.agent.tail(self.id, self._hearing.place, thread=self.thread):
                self._hearing.heard(event)
            self._hearing.over()

    def answer(self, text: str) -> None:
        """Answer the oldest question, and resume."""
        open_ = [one for one in self.questions() if one.until is None]
        if not open_:
            raise InvalidValue("No question is open.")
        self.hf.answer(open_[0].id, **read_answer(open_[0], text))
        self.go_on()

    def stop(self) -> bool:
        """Stop the live turn; return True if there was one."""
        session = self.session()
        if session is None or not session.stop():
            return False
        self.go_on()
        return True

    def _stream(self, message: str | None) -> None:
        try:
            with _stop_button(self._press_stop):
                for event in self.agent.stream(self.id, message, thread=self.thread):
                    self._hearing.heard(event)
        finally:
            self._hearing.over()
        asked = self.questions()
        for question in asked:
            show_question(question)
        if asked and asked[0].until is None:
            note(how_to_answer(asked[0]))

    def _press_stop(self, over: threading.Event) -> None:
        """Ask the turn to stop. The turn may not have begun yet, so repeat until the request is accepted."""
        began = False
        while not began and not over.wait(0.02):
            try:
                began = self.agent.stop(self.id, thread=self.thread)
            except HoldfastError:
                continue
        if not over.wait(PATIENCE_SECONDS):
            note("It has not stopped yet. Ctrl-C again leaves at once.")


@contextmanager
def _stop_button(press: Callable[[threading.Event], None]) -> Iterator[None]:
    """Make the first Ctrl-C stop the turn and the second one leave, within this block."""
    over, pressed = threading.Event(), threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        # In another thread: the interrupted one may hold locks that stopping needs.
        threading.Thread(target=press, args=(over,), name="holdfast-stop", daemon=True).start()

    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, or has another handler.
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)


# answers


def verdict(text: str) -> bool | None:
    """Return True for a plain yes, False for a plain no, else None."""
    said = " ".join(text.casefold().split())
    return True if said in YES else False if said in NO else None


def read_answer(question: QuestionInfo, text: str) -> dict[str, Any]:
    """Parse a typed answer into keyword arguments of `hf.answer`."""
    said = text.strip()
    if not said:
        raise InvalidValue("What is the answer? " + how_to_answer(question))
    plain = verdict(said)
    if plain is not None:
        return {"approve": plain}
    if not is_verdict(question):
        return {"payload": _chosen(question, said)}
    word, _, rest = said.partition(" ")
    approve = verdict(word)
    if approve is None:
        # Any other payload would count as a yes.
        raise InvalidValue("This is answered with yes or no. " + how_to_answer(question))
    if not approve:
        return {
            "approve": False,
            "note" if question.call is None else "payload": _value(rest, bare=question.call is None),
        }
    args = _value(rest)
    if not isinstance(args, dict):
        raise InvalidValue('Behind a yes stand other arguments, as in /answer yes {"amount": 10}.')
    return {"approve": True, "args": args}


def _chosen(question: QuestionInfo, said: str) -> Any:
    options = question.options if isinstance(question.options, list) else []
    if not options:
        return _value(said)
    found = [option for option in options if str(option).casefold() == said.casefold()]
    if not found:
        raise InvalidValue(f"Choose one of: {', '.join(map(str, options))}.")
    return found[0]


def _value(text: str, *, bare: bool = False) -> Any:
    if bare:
        return text.strip()
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text.strip()


SHORT = 200
PROMPT = "> "
KEPT = "Stopped. What was shown is kept in the conversation."
ERASED = "(erased)"
VERDICTS = (["approve", "deny"], [RUN_AGAIN, DO_NOT])
"""The options of a question that is answered with yes or no."""


def show(text: str, style: str = "") -> None:
    """Print some lines of the conversation."""
    console().print(Text(whole(text), style=style), soft_wrap=True)


def fail(error: BaseException) -> None:
    """Print an error on one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    note(f"holdfast: {said}", "red")


class Hearing:
    """The screen of a conversation: shows events as they arrive, each once."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._said = ""
        self._own: list[str] = []
        self._names: dict[str, ToolCallRequest] = {}
        self._kept = False

    def begin(self, messages: Sequence[Message], at: tuple[int, int]) -> None:
        """Show earlier messages; `at` is the journal position they reach, of the thread and of the actor."""
        self._seen = at
        for message in messages:
            self._names.update((call.id, call) for call in message.tool_calls)
            show_message(message)

    @property
    def place(self) -> str:
        """The position up to which everything was shown, in the form that `agent.tail` takes."""
        return f"{self._seen[0]}.{self._seen[1]}"

    def typed(self, text: str) -> None:
        """Remember a text that is on the screen already because the user typed it."""
        self._own.append(text)

    def heard(self, event: AgentEvent) -> None:
        """Show an event, unless it was shown before."""
        if event.id is not None and not self._is_new(event.id):
            return
        shown = getattr(self, f"_{event.kind}", None)
        if shown is not None:
            shown(event)

    def over(self) -> None:
        """End the streamed output, so that the next text begins on a line of its own."""
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

    # one method for each kind of event, found by name

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
                self.over()  # The kept reply differs from the streamed one: show it whole.
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
    """Print a tool's result on one line."""
    show(f"← {'error: ' if failed else ''}{brief(result_text(result), SHORT)}", "red" if failed else "cyan")


def show_message(message: Message) -> None:
    """Print an earlier message."""
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
    """Return True if the question is answered with yes or no."""
    return question.call is not None or question.options in VERDICTS


def show_question(question: QuestionInfo) -> None:
    """Print a question and its options."""
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
    """Return how to answer a question."""
    if question.call is not None:
        return "/answer yes runs it again; /answer no does not; /answer no JSON says what came of it when it ran."
    if is_verdict(question):
        return "/answer yes lets it run; /answer yes JSON with other arguments; /answer no WHY does not."
    return f"/answer {printable(_offered(question)).removeprefix('/answer ')} gives it that answer: words or JSON."
