"""Frame: a live frame inside its `with` block. Run steps once, append, pack, spend, attach, ask, and push children.

A root frame within a session appends to the session's conversation. Any other frame has messages of its own, which
neither its parents nor its children see. `client/frame_block.py` describes how a block is entered and left.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from holdfast.client import pack as client_pack
from holdfast.client.files import add_files
from holdfast.client.frame_block import FrameBlock
from holdfast.client.history_tools import MAX_TOKENS, HistoryTools
from holdfast.client.options import PackOptions, QuestionOptions
from holdfast.client.pack import ContextPack
from holdfast.client.questions import ask_question
from holdfast.core.journal.codec import decode, decode_event, encode
from holdfast.core.values import convert_value, is_record_type, to_plain
from holdfast.core.wire.read import read_input
from holdfast.errors import FrameEnded, InvalidValue, KeyReused, Refused, Waiting
from holdfast.flow.compaction import rules
from holdfast.flow.frames import calls, questions, run_once
from holdfast.flow.frames.ancestry import frame_thread
from holdfast.flow.frames.block import check_not_suspended, frame_key
from holdfast.flow.sessions import append as session_append
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import HandleContent, OutcomeContent
from holdfast.records.frames import Limits
from holdfast.records.ids import check_id
from holdfast.records.messages import Message
from holdfast.records.recovery import Answer, QuestionReceipt
from holdfast.records.usage import Usage


class FrameMessages(FrameBlock):
    """The messages of a frame."""

    @overload
    def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> list[Message]: ...

    @overload
    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message: ...

    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """Append text, a mapping, a Message or a provider's response, or a list in one commit. See Session.append."""
        self._check_inside()
        given = add_files(message, files) if files else message
        found = session_append.append_frame_messages(
            self.env,
            self.id,
            read_input(given, partial=partial),
            key=frame_key(self.id, key),
            policy=policy,
        )
        rules.fire_after_append(self.env, found[-1].stream, found)
        return found if isinstance(message, list) else found[-1]

    def pack(self, budget: int | None = None, **options: Unpack[PackOptions]) -> ContextPack:
        """Return the best context that fits the frame's limits and remaining tokens. See Session.pack."""
        asked = client_pack.make_pack_request("pack", budget, options)
        return client_pack.pack_frame(self.env, self.id, asked, options.get("as_of"))

    def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> HistoryTools:
        """Return tools for a model to read what this frame sees and its pack left out. Each use is a tool call."""
        thread = frame_thread(self.env, self.id)
        return HistoryTools(self.env, thread, frame=self.id, max_tokens=max_tokens)

    def messages(self, limit: int | None = None) -> list[Message]:
        """Return messages as written, oldest first: all, or the newest `limit`. Works after the frame has ended too."""
        return session_append.read_frame_messages(self.env, self.id, limit)


T = TypeVar("T")


class Frame(FrameMessages):
    """A live frame, to be used in a `with` block. Make one with `hf.frame` or `frame.frame`."""

    # work

    def frame(
        self,
        goal: str,
        *,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        inherit: Sequence[str] = (),
        on_error: str = "fail",
    ) -> Frame:
        """Return a child of this frame for its own `with` block. `inherit` names handles that the child sees too."""
        self._check_inside()
        return Frame(
            self.env,
            self._stream,
            goal,
            parent=self.id,
            key=key,
            inputs=inputs,
            tokens=tokens,
            limits=limits,
            inherit=inherit,
            on_error=on_error,
        )

    def run(self, fn: Callable[..., T], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None) -> T:
        """Run a function once; its key returns the value later. If it was interrupted, `if_interrupted` decides."""
        if inspect.iscoroutinefunction(fn):
            raise InvalidValue("This step is async. Use it with holdfast.open_async, or run it to its end yourself.")
        kind = return_type(fn, as_)
        begun = run_once.begin_step(self.env, self.id, key, if_interrupted)
        if begun.known:
            return typing.cast(T, convert_value(begun.known[0], kind))
        try:
            value = fn(*args)
        except Exception as error:
            run_once.fail_step(self.env, self.id, key, begun.call, error)
            raise
        except BaseException:
            run_once.leave_step(self.env, self.id, key)  # The intent stays open: the outcome is unknown.
            raise
        return typing.cast(T, convert_value(run_once.finish_step(self.env, self.id, key, begun.call, value), kind))

    def result(self, value: Any, *, summary: str | None = None) -> Any:
        """Set the frame's result, written when the frame completes; return the value as it will be read back."""
        kept = decode(encode(to_plain(value), self.env.settings.nesting))
        if self._replayed:
            before = self.info().value
            if before != kept and before is not ERASED:
                raise FrameEnded(f"Frame {self.id} is completed with another result. Use a new key for new work.")
            return before
        self._outcome = OutcomeContent(value=kept, summary=summary)
        return kept

    def value(self, as_: Any = None) -> Any:
        """Return the result of a completed frame, converted to a type if one is given."""
        return convert_value(self.info().value, as_)

    def spend(self, usage: Usage | int, *, purpose: str | None = None, key: str | None = None) -> None:
        """Record what work used, paid from a reservation if a purpose is given."""
        check_not_suspended(self.env, self._stream, self.id, key)
        calls.spend_tokens(self.env, self.id, usage, purpose, frame_key(self.id, key))

    def reserve(self, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        check_not_suspended(self.env, self._stream, self.id, key)
        calls.reserve_tokens(self.env, self.id, purpose, amount, frame_key(self.id, key))

    def release(self, purpose: str, amount: int | None = None, *, key: str | None = None) -> None:
        """Release a reservation, whole or in part."""
        check_not_suspended(self.env, self._stream, self.id, key)
        calls.release_reservation(self.env, self.id, purpose, amount, frame_key(self.id, key))

    def attach(
        self,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str | None = None,
        policy: str | None = None,
        tokens: int | None = None,
        key: str | None = None,
    ) -> str:
        """Attach evidence and return the handle's id."""
        check_not_suspended(self.env, self._stream, self.id, key)
        content = HandleContent(description=description, target=target, body=body)
        return calls.add_handle(
            self.env,
            self.id,
            kind,
            content,
            handle=handle,
            priority=priority,
            policy=policy,
            tokens=tokens,
            key=frame_key(self.id, key),
        )

    def detach(self, *handles: str, reason: str | None = None, key: str | None = None) -> str | None:
        """Detach evidence; return the name with which `hf.index.restore_handles` brings it back."""
        check_not_suspended(self.env, self._stream, self.id, key)
        return calls.remove_handles(self.env, self.id, handles, reason, frame_key(self.id, key))

    # questions

    def suspend(self, reason: str, *, key: str | None = None, **options: Unpack[QuestionOptions]) -> QuestionReceipt:
        """Suspend the frame until its question is answered. With its key, a later run finds the answer here."""
        known = self._find_question(key, options.get("token", False))
        if known is not None:
            return known
        return ask_question(
            self.env, self.id, reason, "suspend", options, key=None if key is None else self._question_key(key)
        )

    def _question_key(self, key: str) -> str:
        return f"{self.id}/ask/{check_id(key, 'key')}"

    def _find_question(self, key: str | None, token: bool) -> QuestionReceipt | None:
        """Find the question that was asked under this key, whatever its wording, so that it is asked only once."""
        if key is None:
            return None
        stored = self.env.journal.events_by_key(self.env.tenant, self._stream, self._question_key(key))
        if not stored:
            return None
        # The last suspension in the append is the question itself; earlier ones are its descendants' and timers.
        asked = [event for event in map(decode_event, stored) if event.type == "frame.suspended"]
        if not asked:
            raise KeyReused(f"Key {key!r} already stands for something else. Use another key for this question.")
        question: str = asked[-1].facts.question
        answer = questions.read_answer(self.env, self._stream, question)
        if questions.is_waiting_for(self.env, self.id, question):
            if answer is None:
                fresh = questions.reissue_token_if_open(self.env, question) if token else None
                return QuestionReceipt(question=question, frame=self.id, token=fresh, repeated=True)
            questions.resume_frame(self.env, self.id)
        return QuestionReceipt(question=question, frame=self.id, repeated=True, answer=answer, over=True)

    def ask(self, reason: str, *, key: str, **options: Unpack[QuestionOptions]) -> Answer:
        """Ask a question and return its answer; raise `Waiting` until there is one, then run the same code again."""
        asked = self.suspend(reason, key=key, **options)
        if asked.answer is None and asked.over:
            return Answer(question=asked.question, approved=None, via="timer")
        if asked.answer is None:
            raise Waiting(
                f"Frame {self.id} waits for an answer to question {asked.question}: {reason}", question=asked.question
            )
        return asked.answer

    def __repr__(self) -> str:
        return f"Frame({self._content.goal!r}, id={self._id!r})"


class TurnFrame(Frame):
    """A frame that its turn begins and ends: the turn's own, or that of a tool call."""

    def __init__(
        self,
        env: Env,
        stream: str,
        id: str,
        *,
        goal: str = "",
        replayed: bool = False,
        check_inside: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(env, stream, goal)
        self._id, self._replayed, self._check = id, replayed, check_inside

    def open(self) -> None:
        """Refuse: the frame is open already."""
        what = "The frame of a tool call" if self._check is None else "This frame"
        raise Refused(f"{what} is begun and ended by its turn. Push a child with frame(…) instead.")

    def leave(self, error: BaseException | None = None) -> None:
        """Refuse: the turn ends the frame."""
        self.open()

    def tool_frame(self, call: str) -> TurnFrame:
        """Return the frame of a tool call of this turn, by its key, for code that runs in it."""
        return TurnFrame(self.env, self._stream, call)

    def _check_inside(self) -> None:
        if self._check is not None:
            self._check()


def return_type(fn: Any, as_: Any) -> Any:
    """Return the type to read a step's value back as: the caller's, or a record type that the function declares."""
    if as_ is not None:
        return as_
    try:
        hint = typing.get_type_hints(fn).get("return")
    except Exception:  # noqa: BLE001  an annotation can be any expression
        return None
    return hint if is_record_type(hint) else None
