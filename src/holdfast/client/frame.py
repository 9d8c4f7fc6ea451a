"""Frame: a unit of work in a `with` block that survives its process.

| leaves the block | the frame |
|---|---|
| normally | completed |
| normally, but it or all work below it is suspended | unchanged, and its lease is released |
| by `Waiting`, or because it is suspended | unchanged, and its lease is released |
| by `Unavailable`, `OutcomeUnknown`, `StaleEpoch`, `NotOwner`: it cannot be written now, or not by us | unchanged |
| by another `Exception` | failed; `on_error="leave"` keeps it live |
| by anything else (`CancelledError`, `KeyboardInterrupt`, `SystemExit`, `GeneratorExit`) | live, lease released |

Run the same code again with the same keys and it goes on where it stood.

A root frame within a session appends to the session's conversation. Any other frame has messages of its own, which
neither its parents nor its children see.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.client import pack as client_pack
from holdfast.client.files import add_files
from holdfast.client.history_tools import MAX_TOKENS, HistoryTools
from holdfast.client.options import AppendOptions, PackOptions, QuestionOptions
from holdfast.client.pack import ContextPack
from holdfast.client.questions import ask_question
from holdfast.core.frames import questions as question_rules
from holdfast.core.frames import stack
from holdfast.core.frames.evidence import check_handle_names
from holdfast.core.journal.codec import decode, decode_event, encode
from holdfast.core.values import convert_value, exception_text, is_record_type, to_plain
from holdfast.core.wire.read import read_input
from holdfast.errors import Draining, FrameEnded, InsufficientTokens, InvalidValue, KeyReused, Refused, Waiting
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.frames import evidence, lifecycle, questions, read, steps, takeover
from holdfast.flow.frames.read import frame_thread
from holdfast.flow.journal.append import redact_as_configured
from holdfast.flow.sessions import append as session_append
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import GoalContent, HandleContent, OutcomeContent
from holdfast.records.frames import LIVE_STATUSES, FrameLimits, Limits, Question, TokenBudget
from holdfast.records.ids import MAX_ID_CHARS, check_key, own_key
from holdfast.records.messages import Message
from holdfast.records.recovery import Answer, FrameInfo, QuestionReceipt
from holdfast.records.usage import Usage

T = TypeVar("T")


class Frame:
    """A live frame, to be used in a `with` block. Make one with `hf.frame` or `frame.frame`."""

    def __init__(
        self,
        env: Env,
        stream: str,
        goal: str,
        *,
        parent: str | None = None,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        inherit: Sequence[str] = (),
        on_error: str = "fail",
    ) -> None:
        takeover.check_on_error(on_error)
        self.env, self._stream = env, stream
        self._content = GoalContent(goal=goal, inputs=to_plain(inputs))
        self._parent, self._tokens, self._limits, self._on_error = parent, tokens, limits, on_error
        self._inherit = check_handle_names(inherit)
        own = None if key is None else check_key(key)
        self._key = own if own is None or parent is None else own_key(parent, "child", own)
        self._id: str | None = None
        self._epoch: int | None = None
        """The epoch of the lease that this block uses; None for a child, and for a block that holds no lease."""
        self._claimed = False
        self._replayed = False
        self._outcome = OutcomeContent()

    # entering

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Push the frame, or continue the one that its key stands for."""
        if self._id is not None:
            raise Refused("This block was entered already. Call hf.frame again for another one.")
        known = self._find_by_key()
        if known is not None and self._replayed:
            self._id = known  # Nothing will be written, so there is no owner to wait for.
            return
        if self._parent is None:
            self._open_root()
        else:
            self._id = known or self._push(lease=False)
        self._claim()
        self._resume_if_due()

    def _open_root(self) -> None:
        if self.env.leases.draining:
            raise Draining
        takeover.await_free_stream(self.env, self._stream)
        self._check_before_write()
        with self.env.observers.defer(), self.env.leases.lock(self.env.tenant, self._stream):
            known = self._find_by_key()
            if known is None:
                self._id = self._push(lease=True)
                self._epoch = takeover.join_lease(self.env, self._stream)
            else:
                self._id = known
                if not self._replayed:
                    self._epoch = takeover.take_free_stream(self.env, self._stream)

    def _check_before_write(self) -> None:
        """Hook, called once the actor is free and before anything is written."""

    def _claim(self) -> None:
        """Claim the frame for one block: two would run the same steps in parallel."""
        if self._replayed:
            return
        try:
            takeover.claim_block(self.env, self.id)
        except BaseException:
            self._release_block()
            raise
        self._claimed = True

    def _push(self, *, lease: bool) -> str:
        return lifecycle.push_frame(
            self.env,
            self._stream,
            self._content,
            parent=self._parent,
            tokens=self._tokens,
            limits=self._limits,
            default=lifecycle.default_limits(self.env, self._stream),
            inherit=self._inherit,
            key=self._key,
            lease=lease,
        )

    def _find_by_key(self) -> str | None:
        """Find the frame of the key, live or completed; the steps of a completed one are only replayed."""
        if self._key is None:
            return None
        stored = self.env.journal.events_by_key(self.env.tenant, self._stream, self._key)
        events = [decode_event(event) for event in stored]
        pushed = next((event for event in events if event.type == "frame.pushed"), None)
        if pushed is None:
            if events:
                raise KeyReused(f"Key {self._key!r} already stands for {events[0].type}. Use another key.")
            return None
        frame: str = pushed.facts.frame
        if pushed.content is not ERASED and pushed.content != redact_as_configured(self.env, self._content):
            raise KeyReused(
                f"Key {self._key!r} stands for frame {frame}, which was pushed with another goal or other inputs. "
                "Use a new key for new work."
            )
        info = read.read_frame(self.env, frame)
        if info.status in ("failed", "cancelled"):
            why = info.error or "no reason given"
            raise FrameEnded(
                f"Key {self._key!r} stands for frame {frame}, which is {info.status} ({why}). Use a new key to try "
                "again, or on_error='leave' to keep frames live when they fail.",
                before=info.status,
            )
        self._replayed = info.status == "completed"
        return frame

    def _resume_if_due(self) -> None:
        """Resume a suspended frame whose question is answered or whose timer is due."""
        question: Question | None = None
        try:
            live = read.load_current_state(self.env, self._stream).frames.get(self.id)
            question = None if live is None else live.question
            if question is None or question.within is not None:
                return
            if not question_rules.is_resumable(question, self.env.clock.now_ms()):
                return
            questions.resume_frame(self.env, self.id)
        except InsufficientTokens as error:
            self._release_block()
            raise Waiting(f"{error} Its answer is kept.", question=question.id if question else "") from error
        except BaseException:
            self._release_block()
            raise

    # leaving

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None = None) -> None:
        """End the block. The table above says what happens to the frame."""
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
            self._release_block(error)

    def _complete(self) -> None:
        """Complete the frame, unless all live work below waits for answers: then this frame waits as well."""
        if self._replayed or self.status not in ("active", "waiting"):
            return
        live = read.load_current_state(self.env, self._stream).frames
        if self.id not in live or not stack.is_all_suspended(live, self.id):
            self._pop("completed", self._outcome)

    def _fail(self, error: Exception) -> None:
        status = self.status
        kept = self._on_error == "leave" or takeover.is_interruption(error, status) or self._replayed
        if kept or status not in LIVE_STATUSES:
            error.add_note(f"Frame {self.id} is {status}.")
            return
        self._pop("failed", OutcomeContent(error=exception_text(error)))
        error.add_note(f"Frame {self.id} failed with this.")

    def _pop(self, status: str, content: OutcomeContent) -> None:
        if self._epoch is None:
            lifecycle.pop_frame(self.env, self.id, status, content)
            return
        leases, place = self.env.leases, (self.env.tenant, self._stream)
        # No other thread may count on a lease that is being released.
        with self.env.observers.defer(), leases.lock(*place):
            release = bool(leases.draft_release(*place, self._epoch))
            lifecycle.pop_frame(self.env, self.id, status, content, release=self._epoch if release else None)
            if release:
                leases.remove_user(*place, self._epoch)
                self._epoch = None

    def _check_inside(self) -> None:
        """Refuse an operation outside the block. A frame that has ended refuses by itself."""

    def _release_block(self, error: BaseException | None = None) -> None:
        if self._claimed:
            self._claimed = False
            self.env.leases.blocks.discard((self.env.tenant, self.id))
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            takeover.release_lease(self.env, self._stream, epoch, error)

    # properties

    @property
    def id(self) -> str:
        """The frame's id."""
        if self._id is None:
            raise Refused("The frame exists once its block is entered: with hf.frame(…) as frame.")
        return self._id

    @property
    def scope(self) -> str:
        """The scope of the frame."""
        return self._stream

    def info(self) -> FrameInfo:
        """Return the frame as it is now, with everything on it."""
        return read.read_frame(self.env, self.id)

    @property
    def status(self) -> str:
        """The frame's current status; `completed` if this block only replays it."""
        return takeover.read_status(self.env, self._stream, self.id)

    @property
    def tokens(self) -> TokenBudget:
        """The frame's budget: granted, used, reserved and lent tokens."""
        live = read.load_current_state(self.env, self._stream).frames.get(self.id)
        return live.tokens if live is not None else self.info().tokens

    @property
    def left(self) -> int | None:
        """Tokens that may still be spent, reserved or lent; None without a limit."""
        return self.tokens.available

    @property
    def limits(self) -> FrameLimits:
        """The frame's limits."""
        return self.info().limits

    # messages and packs

    @overload
    def append(self, message: list[Any], **options: Unpack[AppendOptions]) -> list[Message]: ...

    @overload
    def append(self, message: Any, **options: Unpack[AppendOptions]) -> Message: ...

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
        messages = read_input(add_files(message, files) if files else message, partial=partial)
        found = session_append.append_frame_messages(
            self.env, self.id, messages, key=takeover.frame_key(self.id, key), policy=policy
        )
        compaction_rules.fire_rules(self.env, found[-1].stream, found)
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
        begun = steps.begin_step(self.env, self.id, key, if_interrupted)
        if begun.known:
            return typing.cast(T, convert_value(begun.known[0], kind))
        try:
            value = fn(*args)
        except Exception as error:
            steps.fail_step(self.env, self.id, key, begun.call, error)
            raise
        except BaseException:
            steps.leave_step(self.env, self.id, key)  # The intent stays open: the outcome is unknown.
            raise
        return typing.cast(T, convert_value(steps.finish_step(self.env, self.id, key, begun.call, value), kind))

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
        takeover.check_not_suspended(self.env, self._stream, self.id, key)
        lifecycle.spend_tokens(self.env, self.id, usage, purpose, takeover.frame_key(self.id, key))

    def reserve(self, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        takeover.check_not_suspended(self.env, self._stream, self.id, key)
        lifecycle.reserve_tokens(self.env, self.id, purpose, amount, takeover.frame_key(self.id, key))

    def release(self, purpose: str, amount: int | None = None, *, key: str | None = None) -> None:
        """Release a reservation, whole or in part."""
        takeover.check_not_suspended(self.env, self._stream, self.id, key)
        lifecycle.release_reservation(self.env, self.id, purpose, amount, takeover.frame_key(self.id, key))

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
        takeover.check_not_suspended(self.env, self._stream, self.id, key)
        content = HandleContent(description=description, target=target, body=body)
        own = takeover.frame_key(self.id, key)
        return evidence.add_handle(
            self.env, self.id, kind, content, handle=handle, priority=priority, policy=policy, tokens=tokens, key=own
        )

    def detach(self, *handles: str, reason: str | None = None, key: str | None = None) -> str | None:
        """Detach evidence; return the name with which `hf.index.restore_handles` brings it back."""
        takeover.check_not_suspended(self.env, self._stream, self.id, key)
        return evidence.remove_handles(self.env, self.id, handles, reason, takeover.frame_key(self.id, key))

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
        return own_key(self.id, "ask", check_key(key, limit=MAX_ID_CHARS))

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
