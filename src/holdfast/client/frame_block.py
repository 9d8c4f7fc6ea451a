"""Entering and leaving `with hf.frame(…)`: a unit of work that survives its process.

| leaves the block | the frame |
|---|---|
| normally | completed |
| normally, but it or all work below it is suspended | unchanged, and its lease is released |
| by `Waiting`, or because it is suspended | unchanged, and its lease is released |
| by `Unavailable`, `OutcomeUnknown`, `StaleEpoch`, `NotOwner`: it cannot be written now, or not by us | unchanged |
| by another `Exception` | failed; `on_error="leave"` keeps it live |
| by anything else (`CancelledError`, `KeyboardInterrupt`, `SystemExit`, `GeneratorExit`) | live, lease released |

Run the same code again with the same keys and it goes on where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from holdfast.core.frames import evidence, stack
from holdfast.core.frames import questions as rules
from holdfast.core.journal.codec import decode_event
from holdfast.core.values import exception_text, to_plain
from holdfast.errors import Draining, FrameEnded, InsufficientTokens, KeyReused, Refused, Waiting
from holdfast.flow.frames import lifecycle, push, questions, read, takeover
from holdfast.flow.frames.block import (
    check_on_error,
    claim_block,
    default_limits,
    is_interruption,
    read_status,
    release_lease,
)
from holdfast.flow.journal.redact import redact_as_configured
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import GoalContent, OutcomeContent
from holdfast.records.frames import LIVE_STATUSES, FrameLimits, Limits, Question, TokenBudget
from holdfast.records.ids import check_key
from holdfast.records.recovery import FrameInfo


class FrameBlock:
    """The block of a frame: how every frame is entered and left."""

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
        check_on_error(on_error)
        self.env, self._stream = env, stream
        self._content = GoalContent(goal=goal, inputs=to_plain(inputs))
        self._parent, self._tokens, self._limits, self._on_error = parent, tokens, limits, on_error
        self._inherit = evidence.check_handle_names(inherit)
        self._key = None if key is None else check_key(key if parent is None else f"{parent}/frame/{key}")
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
            claim_block(self.env, self.id)
        except BaseException:
            self._release_block()
            raise
        self._claimed = True

    def _push(self, *, lease: bool) -> str:
        return push.push_frame(
            self.env,
            self._stream,
            self._content,
            parent=self._parent,
            tokens=self._tokens,
            limits=self._limits,
            default=default_limits(self.env, self._stream),
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
            if (
                question is None
                or question.within is not None
                or not rules.is_resumable(question, self.env.clock.now_ms())
            ):
                return
            questions.resume_frame(self.env, self.id)
        except InsufficientTokens as error:
            self._release_block()
            raise Waiting(f"{error} Its answer is kept.", question=question.id if question else "") from error
        except BaseException:
            self._release_block()
            raise

    # leaving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if self._replayed or self.status not in ("active", "waiting") or self._is_waiting_below():
            return
        self._pop("completed", self._outcome)

    def _is_waiting_below(self) -> bool:
        """Return True if all live work below waits for answers: then this frame waits as well."""
        live = read.load_current_state(self.env, self._stream).frames
        return self.id in live and stack.is_all_suspended(live, self.id)

    def _fail(self, error: Exception) -> None:
        status = self.status
        kept = self._on_error == "leave" or is_interruption(error, status) or self._replayed
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
            release_lease(self.env, self._stream, epoch, error)

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
        return read_status(self.env, self._stream, self.id)

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
