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
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import msgspec
from rich.text import Text

from holdfast.cli.frames import question_state
from holdfast.cli.output import ERASED_TEXT, console, escape_lines, escape_text, format_text, print_note, shorten_text
from holdfast.cli.sessions import content_text, result_text
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.core.wire.tools import describe_call
from holdfast.errors import HoldfastError, InvalidValue, QuestionNotFound, Refused, SessionNotFound
from holdfast.flow.turns.turns import STOPPED, TURN_ACTOR
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.recovery import DO_NOT_RUN, RUN_AGAIN, FrameInfo, QuestionInfo
from holdfast.records.scope import Address, Scope
from holdfast.runtime.agent import Agent
from holdfast.runtime.reply import AgentEvent
from holdfast.system import SystemClock

SHOWN_MESSAGES = 6
STOP_GRACE_SECONDS = 1.0
YES = ("yes", "y", "approve", RUN_AGAIN)
NO = ("no", "n", "deny", DO_NOT_RUN)
RESULT_CHARS = 200
PROMPT = "> "
YES_NO_OPTIONS = (["approve", "deny"], [RUN_AGAIN, DO_NOT_RUN])
"""The options of a question that is answered with yes or no."""


class ChatSession:
    """A conversation with an agent at a terminal."""

    def __init__(self, hf: Holdfast, agent: Agent[Any], id: str, thread: str) -> None:
        self.hf, self.agent, self.id, self.thread = hf, agent, id, thread
        self.scope = Scope.actor(TURN_ACTOR, session=id, thread=thread).text
        self._hearing = ChatScreen()

    # state

    def session(self) -> Session | None:
        """Return the session; None if it does not exist yet."""
        try:
            return self.hf.session(self.id, thread=self.thread, create=False)
        except SessionNotFound:
            return None

    def live_turn(self) -> FrameInfo | None:
        """Return the root frame of the turn that has not ended, if there is one."""
        return next((one for one in self.hf.index.stack(self.scope) if one.turn is not None), None)

    def open_questions(self) -> list[QuestionInfo]:
        """Return the unanswered questions of the turn, in the order of the stack."""
        asked = [one.question.id for one in self.hf.index.stack(self.scope) if one.question and not one.question.within]
        found = []
        for id in asked:
            with suppress(QuestionNotFound):  # It was just answered and resumed.
                found.append(self.hf.index.question(id))
        return [one for one in found if not one.answered]

    # actions

    def begin(self) -> None:
        """Show the end of the conversation, and resume an unfinished turn."""
        at = self._newest_version(Scope.thread(self.id, self.thread)), self._newest_version(self.scope)
        session = self.session()
        self._hearing.begin([] if session is None else session.messages(SHOWN_MESSAGES), at)
        if self.live_turn() is not None:
            print_note("Continuing an interrupted turn.")
            self.resume()

    def _newest_version(self, stream: Address) -> int:
        event = next(iter(self.hf.journal.events(stream, backwards=True)), None)
        return 0 if event is None else event.version

    def send(self, text: str) -> None:
        """Send a message and show what follows. A message to a waiting turn joins that turn."""
        self._hearing.typed.append(text)
        self._stream_turn(text)

    def resume(self) -> None:
        """Resume the live turn."""
        try:
            self._stream_turn(None)
        except Refused:
            if self.live_turn() is not None:
                raise
            # Another process has ended the turn in the meantime.
            for event in self.agent.tail(self.id, self._hearing.position, thread=self.thread):
                self._hearing.show_event(event)
            self._hearing.end_output()

    def answer(self, text: str) -> None:
        """Answer the oldest question, and resume."""
        open_ = [one for one in self.open_questions() if one.until is None]
        if not open_:
            raise InvalidValue("No question is open.")
        self.hf.answer(open_[0].id, **parse_answer(open_[0], text))
        self.resume()

    def stop(self) -> bool:
        """Stop the live turn; return True if there was one."""
        session = self.session()
        if session is None or not session.stop():
            return False
        self.resume()
        return True

    def _stream_turn(self, message: str | None) -> None:
        try:
            with _stop_on_interrupt(self._request_stop):
                for event in self.agent.stream(self.id, message, thread=self.thread):
                    self._hearing.show_event(event)
        finally:
            self._hearing.end_output()
        asked = self.open_questions()
        for question in asked:
            reason = format_text(question.reason, "(no reason given)")
            if question.until is None:
                print_text(f"? {reason} [{_format_options(question)}]", "bold yellow")
            else:
                state = question_state(question, SystemClock().now_ms())
                print_text(f"… {reason} ({state}; press Enter after that)", "yellow")
        if asked and asked[0].until is None:
            print_note(answer_help(asked[0]))

    def _request_stop(self, over: threading.Event) -> None:
        """Ask the turn to stop. The turn may not have begun yet, so repeat until the request is accepted."""
        began = False
        while not began and not over.wait(0.02):
            try:
                began = self.agent.stop(self.id, thread=self.thread)
            except HoldfastError:
                continue
        if not over.wait(STOP_GRACE_SECONDS):
            print_note("Still stopping. Press Ctrl-C again to leave at once.")


@contextmanager
def _stop_on_interrupt(press: Callable[[threading.Event], None]) -> Iterator[None]:
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


def parse_verdict(text: str) -> bool | None:
    """Return True for a plain yes, False for a plain no, else None."""
    said = " ".join(text.casefold().split())
    return True if said in YES else False if said in NO else None


def parse_answer(question: QuestionInfo, text: str) -> dict[str, Any]:
    """Parse a typed answer into keyword arguments of `hf.answer`."""
    said = text.strip()
    if not said:
        raise InvalidValue("The answer is missing. " + answer_help(question))
    plain = parse_verdict(said)
    if plain is not None:
        return {"approve": plain}
    if not is_yes_no_question(question):
        return {"payload": _match_option(question, said)}
    word, _, rest = said.partition(" ")
    approve = parse_verdict(word)
    if approve is None:
        # Any other payload would count as a yes.
        raise InvalidValue("Answer yes or no. " + answer_help(question))
    if not approve and question.call is None:
        return {"approve": False, "note": rest.strip()}
    given = _parse_value(rest)
    if not approve:
        return {"approve": False, "payload": given}
    if not isinstance(given, dict):
        raise InvalidValue('Behind a yes stand other arguments, as in /answer yes {"amount": 10}.')
    return {"approve": True, "args": given}


def _match_option(question: QuestionInfo, said: str) -> Any:
    options = question.options if isinstance(question.options, list) else []
    if not options:
        return _parse_value(said)
    found = [option for option in options if str(option).casefold() == said.casefold()]
    if not found:
        raise InvalidValue(f"Choose one of: {', '.join(map(str, options))}.")
    return found[0]


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text.strip()


def print_text(text: str, style: str = "") -> None:
    """Print some lines of the conversation."""
    console().print(Text(escape_lines(text), style=style), soft_wrap=True)


def print_error(error: BaseException) -> None:
    """Print an error on one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    print_note(f"holdfast: {said}", "red")


class ChatScreen:
    """The screen of a conversation: shows events as they arrive, each once."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._said = ""
        self.typed: list[str] = []
        """Texts that are on the screen already because the user typed them."""
        self._names: dict[str, ToolCallRequest] = {}
        self._kept = False

    def begin(self, messages: Sequence[Message], at: tuple[int, int]) -> None:
        """Show earlier messages; `at` is the journal position they reach, of the thread and of the actor."""
        self._seen = at
        for message in messages:
            self._names.update((call.id, call) for call in message.tool_calls)
            show_message(message)

    @property
    def position(self) -> str:
        """The position up to which everything was shown, in the form that `agent.tail` takes."""
        return f"{self._seen[0]}.{self._seen[1]}"

    def show_event(self, event: AgentEvent) -> None:
        """Show an event, unless it was shown before."""
        if event.id is not None and not self._is_new(event.id):
            return
        if shown := getattr(self, f"_{event.kind}", None):
            shown(event)

    def end_output(self) -> None:
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
        if event.text in self.typed:
            self.typed.remove(event.text)
            return
        self.end_output()
        print_text(f"{PROMPT}{event.text}", "bold")

    def _delta(self, event: AgentEvent) -> None:
        self._said += event.text
        sys.stdout.write(escape_lines(event.text))
        sys.stdout.flush()

    def _reset(self, event: AgentEvent) -> None:
        if self._said:
            self.end_output()
            print_note("(The reply was cut off and starts again.)")

    def _reply(self, event: AgentEvent) -> None:
        if event.text.strip() != self._said.strip():
            if not event.text.startswith(self._said):
                self.end_output()  # The kept reply differs from the streamed one: show it whole.
            rest = event.text[len(self._said) :]
            sys.stdout.write(escape_lines(rest))
            self._said += rest
        self.end_output()
        self._kept = bool(event.data.get("partial"))
        for call in event.data.get("calls", ()):
            self._names[call["id"]] = ToolCallRequest(**call)

    def _tool(self, event: AgentEvent) -> None:
        self.end_output()
        request = self._names.get(event.data.get("call", ""))
        again = "  (again)" if event.data.get("attempt", 1) > 1 else ""
        print_text(f"→ {event.name if request is None else describe_call(request)}{again}", "magenta")

    def _progress(self, event: AgentEvent) -> None:
        self.end_output()
        print_text(f"  … {shorten_text(event.text, RESULT_CHARS)}", "dim")

    def _result(self, event: AgentEvent) -> None:
        self.end_output()
        for one in event.data.get("results", ()):
            show_tool_result(one["result"], failed=bool(one["is_error"]))

    def _stopped(self, event: AgentEvent) -> None:
        self.end_output()
        if event.data["code"] != "stopped":  # Nobody wanted that, and a script must be told.
            raise HoldfastError(f"The turn was stopped: {event.text}")
        why = "Stopped." if event.text in ("", STOPPED) else f"Stopped: {event.text}"
        kept = "Stopped. The text shown so far is kept in the conversation."
        print_note(kept if self._kept else why, "yellow")
        self._kept = False


def show_tool_result(result: Any, *, failed: bool) -> None:
    """Print a tool's result on one line."""
    print_text(
        f"← {'error: ' if failed else ''}{shorten_text(result_text(result), RESULT_CHARS)}", "red" if failed else "cyan"
    )


def show_message(message: Message) -> None:
    """Print an earlier message."""
    text = ERASED_TEXT if message.erased else content_text(message.content or "")
    if message.role == "user":
        print_text(f"{PROMPT}{text}", "bold")
    elif text and message.role == "assistant":
        print_text(text + ("  (stopped here)" if message.partial else ""))
    for call in message.tool_calls:
        print_text(f"→ {ERASED_TEXT if message.erased else describe_call(call)}", "magenta")
    for result in message.tool_results:
        show_tool_result(ERASED_TEXT if message.erased else result.result, failed=result.is_error or result.interrupted)


def is_yes_no_question(question: QuestionInfo) -> bool:
    """Return True if the question is answered with yes or no."""
    return question.call is not None or question.options in YES_NO_OPTIONS


def _format_options(question: QuestionInfo) -> str:
    if is_yes_no_question(question):
        return "yes/no"
    options = question.options if isinstance(question.options, list) else []
    return "/".join(map(str, options)) if options else "/answer …"


def answer_help(question: QuestionInfo) -> str:
    """Return how to answer a question."""
    if question.call is not None:
        return "/answer yes runs it again; /answer no does not; /answer no JSON gives the result of the first run."
    if is_yes_no_question(question):
        return "/answer yes runs it; /answer yes JSON runs it with other arguments; /answer no REASON does not."
    options = escape_text(_format_options(question)).removeprefix("/answer ")
    return f"/answer {options} answers with text or JSON."
