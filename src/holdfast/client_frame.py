"""`with hf.frame(…) as frame:` a unit of work that survives its process.

| leaves the block | the frame |
|---|---|
| normally | completed |
| normally, but it or all work below it is suspended | unchanged, and its lease is released |
| by `Waiting`, because it is suspended, or by `Draining` | unchanged, and its lease is released |
| by another `Exception` | failed; `on_error="leave"` keeps it live |
| by anything else (`CancelledError`, `KeyboardInterrupt`, `SystemExit`, `GeneratorExit`) | live, lease released |

Run the same code again with the same keys and it goes on where it stood.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.core import stack
from holdfast.core.codec import decode_event
from holdfast.core.decide import questions as rules
from holdfast.core.values import is_record_type, plain, typed
from holdfast.errors import Draining, FrameEnded, InvalidTransition, InvalidValue, KeyReused, Refused, Waiting
from holdfast.flow import asking, frames, owning, showing, steps, working
from holdfast.ports import Acting, Ports
from holdfast.records.budget import TokenBudget
from holdfast.records.events.frames import GoalContent, HandleContent, OutcomeContent, QuestionContent
from holdfast.records.frames import LIVE, Limits
from holdfast.records.ids import check_id, check_key
from holdfast.records.resume import Answer, Asked, FrameInfo
from holdfast.records.usage import Usage

T = TypeVar("T")
ON_ERROR = ("fail", "leave")
BLOCK_LIMITS = Limits(context_tokens=128_000, tool_calls=50, depth=3, timeout_ms=None)
"""What a frame may do if nobody says otherwise and no model is named."""


class Frame:
    """A live frame, to be used in a `with` block. Make one with `hf.frame` or `frame.frame`."""

    def __init__(
        self,
        ports: Ports,
        acting: Acting,
        stream: str,
        goal: str,
        *,
        parent: str | None = None,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        on_error: str = "fail",
    ) -> None:
        if on_error not in ON_ERROR:
            raise InvalidValue(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}.")
        self._ports, self._acting, self._stream = ports, acting, stream
        self._content = GoalContent(goal=goal, inputs=plain(inputs))
        self._parent, self._tokens, self._limits, self._on_error = parent, tokens, limits, on_error
        self._key = None if key is None else check_key(key if parent is None else f"{parent}/{key}")
        self._id: str | None = None
        self._leased = False
        self._replayed = False
        self._outcome = OutcomeContent()

    # entering

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Push the frame, or take up the one that its key stands for."""
        if self._id is not None:
            raise Refused("This block was entered already. Call hf.frame again for another one.")
        if self._parent is not None:
            self._id = self._take_up() or self._push(lease=False)
            self._wake()
            return
        owning.await_free(self._ports, self._acting, self._stream)
        with self._ports.leases.taking:
            known = self._take_up()
            if known is None:
                self._id = self._push(lease=True)
                owning.note_taken(self._ports, self._acting, self._stream)
                self._leased = True
            else:
                self._id = known
                if not self._replayed:
                    owning.take_free(self._ports, self._acting, self._stream)
                    self._leased = True
        self._wake()

    def _push(self, *, lease: bool) -> str:
        return frames.push(
            self._ports,
            self._acting,
            self._stream,
            self._content,
            parent=self._parent,
            tokens=self._tokens,
            limits=self._limits,
            default=BLOCK_LIMITS,
            key=self._key,
            lease=lease,
        )

    def _take_up(self) -> str | None:
        """The frame that the key stands for: live, or completed, whose steps then are only remembered."""
        if self._key is None:
            return None
        stored = self._ports.journal.by_key(self._acting.tenant, self._stream, self._key)
        events = [decode_event(event) for event in stored]
        pushed = next((event for event in events if event.type == "frame.pushed"), None)
        if pushed is None:
            if events:
                raise KeyReused(f"Key {self._key!r} already stands for {events[0].type}. Use another key.")
            return None
        frame: str = pushed.facts.frame
        info = showing.frame_info(self._ports, self._acting, frame)
        if info.status in ("failed", "cancelled"):
            why = info.error or "no reason given"
            raise FrameEnded(
                f"Key {self._key!r} stands for frame {frame}, which is {info.status} ({why}). Use a new key to try "
                "again, or on_error='leave' to keep frames live when they fail.",
                before=info.status,
            )
        self._replayed = info.status == "completed"
        return frame

    def _wake(self) -> None:
        """Go on, if the frame was suspended and its question is answered or its timer rang."""
        try:
            live = showing.current(self._ports, self._acting, self._stream).frames.get(self.id)
            question = None if live is None else live.question
            if question is None or question.within is not None or not rules.due(question, self._ports.clock.now_ms()):
                return
            asking.resume(self._ports, self._acting, self.id)
        except BaseException:
            self._let_go()
            raise

    # leaving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None = None) -> None:
        """End the block: what becomes of the frame is in the table above."""
        try:
            if error is None:
                self._complete()
            elif isinstance(error, Exception):
                self._fail(error)
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"Frame {self.id} could not be ended: {second}")
        finally:
            self._let_go(error)

    def _complete(self) -> None:
        if self._replayed or self.status not in ("active", "waiting") or self._waits_below():
            return
        self._pop("completed", self._outcome)

    def _waits_below(self) -> bool:
        """Whether everything live below waits for answers: then this frame waits as well."""
        live = showing.current(self._ports, self._acting, self._stream).frames
        return self.id in live and stack.all_suspended(live, self.id)

    def _fail(self, error: Exception) -> None:
        if self._on_error == "leave" or self._only_stopped(error) or self._replayed or self.status not in LIVE:
            error.add_note(f"Frame {self.id} is {self.status}.")
            return
        self._pop("failed", OutcomeContent(error=f"{type(error).__name__}: {error}"))
        error.add_note(f"Frame {self.id} failed with this.")

    def _only_stopped(self, error: Exception) -> bool:
        """Whether this is no failure: something waits for an answer, or the client shuts down."""
        if isinstance(error, ExceptionGroup):  # A task group wraps what its tasks raise.
            return all(self._only_stopped(part) for part in error.exceptions)
        if isinstance(error, Draining):
            return True
        waits = isinstance(error, Waiting) or (isinstance(error, InvalidTransition) and error.before == "suspended")
        return waits and self.status in ("suspended", "waiting")

    def _pop(self, status: str, content: OutcomeContent) -> None:
        if not self._leased:
            frames.pop(self._ports, self._acting, self.id, status, content)
            return
        with self._ports.leases.taking:  # Another thread must not count on a lease that is being given back.
            release = bool(self._ports.leases.released(self._acting.tenant, self._stream))
            frames.pop(self._ports, self._acting, self.id, status, content, release=release)
            if release:
                self._leased = False
                self._ports.leases.left(self._acting.tenant, self._stream)

    def _let_go(self, error: BaseException | None = None) -> None:
        if not self._leased:
            return
        self._leased = False
        try:
            owning.let_go(self._ports, self._acting, self._stream)
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"The lease of {self._stream} could not be given back: {second}")

    # what it is

    @property
    def id(self) -> str:
        """The frame's id."""
        if self._id is None:
            raise Refused("The frame exists once its block is entered: with hf.frame(…) as frame.")
        return self._id

    @property
    def scope(self) -> str:
        """Where the frame lives."""
        return self._stream

    def info(self) -> FrameInfo:
        """The frame as it is now, with everything on it."""
        return showing.frame_info(self._ports, self._acting, self.id)

    @property
    def status(self) -> str:
        """What the frame does now; `completed` if this block only repeats what was done."""
        live = showing.current(self._ports, self._acting, self._stream).frames.get(self.id)
        return live.status if live is not None else self.info().status

    @property
    def tokens(self) -> TokenBudget:
        """Granted, used, reserved, lent."""
        live = showing.current(self._ports, self._acting, self._stream).frames.get(self.id)
        return live.tokens if live is not None else self.info().tokens

    @property
    def left(self) -> int | None:
        """Tokens that may still be spent, reserved or lent; None without a limit."""
        return self.tokens.available

    @property
    def limits(self) -> Limits:
        """What the frame may do."""
        return self.info().limits

    # work

    def frame(
        self,
        goal: str,
        *,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        on_error: str = "fail",
    ) -> Frame:
        """A child of this frame, for a `with` block of its own."""
        return Frame(
            self._ports,
            self._acting,
            self._stream,
            goal,
            parent=self.id,
            key=key,
            inputs=inputs,
            tokens=tokens,
            limits=limits,
            on_error=on_error,
        )

    def run(self, fn: Callable[..., T], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None) -> T:
        """Run something once. Again with its key, it gives what it gave; if it was torn, `if_interrupted` decides."""
        kind = return_type(fn, as_)
        begun = steps.begin(self._ports, self._acting, self.id, key, if_interrupted)
        if begun.known:
            return typing.cast(T, typed(begun.known[0], kind))
        try:
            value = fn(*args)
        except Exception as error:
            steps.failed(self._ports, self._acting, self.id, key, begun.call, error)
            raise
        except BaseException:
            steps.RUNNING.leave(self.id, key)  # The intent stays open: nobody knows what happened.
            raise
        return typing.cast(T, typed(steps.done(self._ports, self._acting, self.id, key, begun.call, value), kind))

    def result(self, value: Any, *, summary: str | None = None) -> Any:
        """What the frame gives: written when it is completed. Gives the value as it will be read."""
        kept = plain(value)
        if self._replayed:
            before = self.info().value
            if before != kept:
                raise FrameEnded(f"Frame {self.id} is completed with another result. Use a new key for new work.")
            return before
        self._outcome = OutcomeContent(value=kept, summary=summary)
        return kept

    def value(self, as_: Any = None) -> Any:
        """The result of a completed frame, as a type if one is given."""
        return typed(self.info().value, as_)

    def spend(self, usage: Usage | int, *, purpose: str | None = None, key: str | None = None) -> None:
        """Record what work used, from a reservation if a purpose is given."""
        working.spend(self._ports, self._acting, self.id, usage, purpose, key)

    def reserve(self, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        working.reserve(self._ports, self._acting, self.id, purpose, amount, key)

    def release(self, purpose: str, amount: int | None = None, *, key: str | None = None) -> None:
        """Give a reservation back."""
        working.release(self._ports, self._acting, self.id, purpose, amount, key)

    def attach(
        self,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str = "medium",
        tokens: int | None = None,
        key: str | None = None,
    ) -> str:
        """Attach evidence; gives the handle's id."""
        content = HandleContent(description=description, target=target, body=body)
        return working.add_handle(
            self._ports,
            self._acting,
            self.id,
            kind,
            content,
            handle=handle,
            priority=priority,
            tokens=tokens,
            key=key,
        )

    def detach(self, *handles: str, reason: str | None = None, key: str | None = None) -> str | None:
        """Detach evidence; `hf.index.restore_handles` brings it back by the name this gives."""
        return working.remove_handles(self._ports, self._acting, self.id, handles, reason, key)

    # questions

    def suspend(
        self,
        reason: str,
        *,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        arguments: Any = None,
        token: bool = False,
        expires_ms: int | None = None,
        on_expiry: str | None = None,
        until: int | None = None,
        subtree: bool = False,
        key: str | None = None,
    ) -> Asked:
        """Stop until somebody answers, and leave the block. With its key, a later run finds the answer here."""
        known = self._asked(key, reason)
        if known is not None:
            return known
        content = QuestionContent(
            reason=reason, options=None if options is None else list(options), arguments=plain(arguments)
        )
        return asking.suspend(
            self._ports,
            self._acting,
            self.id,
            content,
            kind=kind,
            token=token,
            expires_ms=expires_ms,
            on_expiry=on_expiry,
            until=until,
            subtree=subtree,
            key=None if key is None else self._question_key(key),
        )

    def _question_key(self, key: str) -> str:
        return f"{self.id}/ask/{check_id(key, 'key')}"

    def _asked(self, key: str | None, reason: str) -> Asked | None:
        """A question that was asked under this key and that the frame has gone on from."""
        if key is None:
            return None
        stored = self._ports.journal.by_key(self._acting.tenant, self._stream, self._question_key(key))
        if not stored:
            return None
        question: str = decode_event(stored[-1]).facts.question
        answer = asking.answer_of(self._ports, self._acting, self._stream, question)
        if asking.waits_for(self._ports, self._acting, self.id, question):
            if answer is None:
                return None
            asking.resume(self._ports, self._acting, self.id)
        return Asked(question=question, frame=self.id, repeated=True, answer=answer, over=True)

    def ask(self, reason: str, *, key: str, **how: Any) -> Answer:
        """Ask and go on with the answer; raises `Waiting` until there is one. Run the same code again then."""
        asked = self.suspend(reason, key=key, **how)
        if asked.answer is None and asked.over:
            return Answer(question=asked.question, approved=None, via="timer")
        if asked.answer is None:
            raise Waiting(
                f"Frame {self.id} waits for an answer to question {asked.question}: {reason}", question=asked.question
            )
        return asked.answer

    def __repr__(self) -> str:
        return f"Frame({self._content.goal!r}, id={self._id!r})"


def return_type(fn: Any, as_: Any) -> Any:
    """What a step's value is read back as: what the caller says, or a record type that its function names."""
    if as_ is not None:
        return as_
    try:
        hint = typing.get_type_hints(fn).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return hint if is_record_type(hint) else None
