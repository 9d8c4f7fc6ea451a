"""The turns of a chat: said, gone on with, answered, stopped. Nothing is kept here but what is in the journal.

So whoever kills the terminal and starts it again goes on with the same turn.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from holdfast.cli.chat_words import Hearing, how_to_answer, is_verdict, show_question
from holdfast.cli.output import note
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.errors import HoldfastError, InvalidValue, QuestionNotFound, Refused, SessionNotFound
from holdfast.flow.turn.turns import ACTOR
from holdfast.records.resume import DO_NOT, RUN_AGAIN, FrameInfo, QuestionInfo
from holdfast.records.scope import Address, Scope
from holdfast.runtime.sync_agent import Agent

SHOWN = 6
PATIENCE_SECONDS = 1.0
YES = ("yes", "y", "approve", RUN_AGAIN)
NO = ("no", "n", "deny", DO_NOT)


class Talk:
    """One conversation with one agent, at a terminal."""

    def __init__(self, hf: Holdfast, agent: Agent[Any], id: str, thread: str) -> None:
        self.hf, self.agent, self.id, self.thread = hf, agent, id, thread
        self.scope = Scope.actor(ACTOR, session=id, thread=thread).text
        self._hearing = Hearing()

    # what there is

    def session(self) -> Session | None:
        """The conversation; None if nothing was said yet."""
        try:
            return self.hf.session(self.id, thread=self.thread, create=False)
        except SessionNotFound:
            return None

    def live(self) -> FrameInfo | None:
        """The turn that has not ended, if there is one."""
        return next((one for one in self.hf.index.stack(self.scope) if one.turn is not None), None)

    def questions(self) -> list[QuestionInfo]:
        """What the turn waits for, oldest first."""
        asked = [one.question.id for one in self.hf.index.stack(self.scope) if one.question and not one.question.within]
        found = []
        for id in asked:
            try:
                found.append(self.hf.index.question(id))
            except QuestionNotFound:
                continue  # It was answered and gone on with just now.
        return sorted((one for one in found if not one.answered), key=lambda one: (one.suspended_at, one.id))

    # what can be done

    def begin(self) -> None:
        """Show the end of what was said, and go on with a turn that was left."""
        at = self._newest(Scope.thread(self.id, self.thread)), self._newest(self.scope)
        session = self.session()
        self._hearing.begin([] if session is None else session.messages(SHOWN), at)
        if self.live() is not None:
            note("A turn was left. It goes on.")
            self.go_on()

    def _newest(self, stream: Address) -> int:
        """How far a stream is."""
        event = next(iter(self.hf.journal.events(stream, backwards=True)), None)
        return 0 if event is None else event.version

    def say(self, text: str) -> None:
        """Say something and show what comes of it. In a turn that waits it joins that turn."""
        self._hearing.typed(text)
        self._stream(text)

    def go_on(self) -> None:
        """Go on with the turn that is live."""
        try:
            self._stream(None)
        except Refused:
            if self.live() is not None:
                raise
            # Another terminal worked on it, and has ended it meanwhile.
            for event in self.agent.tail(self.id, self._hearing.place, thread=self.thread):
                self._hearing.heard(event)
            self._hearing.over()

    def answer(self, text: str) -> None:
        """Answer the oldest question, and go on."""
        open_ = [one for one in self.questions() if one.until is None]
        if not open_:
            raise InvalidValue("No question is open.")
        self.hf.answer(open_[0].id, **read_answer(open_[0], text))
        self.go_on()

    def stop(self) -> bool:
        """End the turn that is live, here and now; gives whether there was one."""
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
        """Ask for the turn to stop. It may not have begun yet, so this asks until it is heard."""
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
    """Ctrl-C means stop while this lasts, and leaves if it is pressed again."""
    over, pressed = threading.Event(), threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        # Not here: the thread that was interrupted may hold what this needs.
        threading.Thread(target=press, args=(over,), name="holdfast-stop", daemon=True).start()

    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is not signal.default_int_handler:
        yield  # Somebody ignores Ctrl-C, or has other plans with it.
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)


# answers


def verdict(text: str) -> bool | None:
    """Whether some words are a plain yes or a plain no."""
    said = " ".join(text.casefold().split())
    return True if said in YES else False if said in NO else None


def read_answer(question: QuestionInfo, text: str) -> dict[str, Any]:
    """An answer as it was typed, as `hf.answer` takes it."""
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
        # Anything else would count as a yes.
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
    """JSON if it can be read so, else the text."""
    if bare:
        return text.strip()
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text.strip()
