"""Suspension: ask, answer once, resume. A subtree is suspended leaf first and resumed root first.

A suspended frame gives its unused grant back to its parent and takes it again when it is
resumed; its clock stops meanwhile. For the clocks of its ancestors, see `add_clock_events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msgspec.structs import replace

from holdfast import errors
from holdfast.core.frames.budgets import check_available
from holdfast.core.frames.stack import (
    ancestry,
    children,
    earliest_deadline,
    has_live_children,
    live_frame,
    running_deadline,
    walk_leaf_first,
)
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import FrameState, OnExpiry, Question, QuestionKind, StreamState, TokenBudget

QUESTION_KINDS: tuple[str, ...] = get_args(QuestionKind)
EXPIRY_POLICIES: tuple[str, ...] = get_args(OnExpiry)
ANSWER_REQUIRED = frozenset({"approval", "input"})
"""Kinds of questions that cannot be answered with nothing."""


def suspend(
    state: StreamState,
    facts: frames.FrameSuspendedFacts,
    content: frames.QuestionContent,
    *,
    subtree: bool,
    release: bool,
    below: list[str],
    leave_away: bool = False,
) -> list[Draft]:
    """Suspend a frame until it is answered. `below` are question ids for the frames below it, leaf first.

    Children in other streams keep running; `leave_away=True` accepts that.
    """
    check_question(facts)
    frame = live_frame(state, facts.frame)
    if frame.question is not None:
        raise errors.FrameSuspended(
            f"Frame {frame.id} is suspended already, by question {frame.question.id}. One frame, one question.",
            question=frame.question.id,
        )
    below_it = list(walk_leaf_first(state.frames, frame.id))
    away = [child for other in (*below_it, frame) for child in other.away]
    if away and not leave_away:
        raise errors.HasLiveChildren(
            f"Frame {frame.id} has live children in other streams ({', '.join(away)}). Suspend those themselves."
        )
    under = [other for other in below_it if other.question is None]
    if under and not subtree:
        raise errors.HasLiveChildren(
            f"Frame {frame.id} has live children. Suspend the one that waits, or pass subtree=True to suspend all.",
            before=frame.status,
            after="suspended",
        )
    drafts: list[Draft] = []
    lent = {other.id: other.lent for other in state.frames.values()}
    for other, question in zip(under, below, strict=True):
        nested = frames.FrameSuspendedFacts(
            frame=other.id, question=question, kind=facts.kind, prior=_prior_status(state, other), within=facts.question
        )
        drafts.append(_suspension_draft(other, nested, None, lent, release))
    drafts.append(_suspension_draft(frame, replace(facts, prior=_prior_status(state, frame)), content, lent, release))
    return drafts


def _prior_status(state: StreamState, frame: FrameState) -> str:
    """Return the status to resume with. A frame that waits for children resumes as active: they may have ended."""
    return "active" if has_live_children(state.frames, frame) else frame.status


def _suspension_draft(
    frame: FrameState,
    facts: frames.FrameSuspendedFacts,
    content: frames.QuestionContent | None,
    lent: dict[str, int],
    release: bool,
) -> Draft:
    released = 0
    # A model call in flight will be paid for from the grant, so the grant is not released.
    calling = any(call.kind == "model" for call in frame.calls.values())
    if release and frame.parent is not None and not calling:
        # Its children have given tokens back already, so it has lent less than before.
        released = replace(frame.tokens, lent=lent[frame.id]).unused
        lent[frame.parent] -= released
    return Draft(type="frame.suspended", facts=replace(facts, parent=frame.parent, released=released), content=content)


def check_question(facts: frames.FrameSuspendedFacts) -> None:
    """Check the kind, expiry and timer of a question."""
    if facts.kind not in QUESTION_KINDS:
        raise errors.InvalidValue(
            f"{facts.kind!r} is not a kind of question. Known kinds: {', '.join(QUESTION_KINDS)}."
        )
    if facts.on_expiry is not None and facts.on_expiry not in EXPIRY_POLICIES:
        raise errors.InvalidValue(f"on_expiry must be one of {', '.join(EXPIRY_POLICIES)}, not {facts.on_expiry!r}.")
    if facts.on_expiry is not None and facts.expires_at is None:
        raise errors.InvalidValue("on_expiry needs an expiry. Pass expires_ms as well.")
    if (facts.until is None) == (facts.kind == "timer"):
        raise errors.InvalidValue("A timer needs `until`, and only a timer has it.")


def answer(
    state: StreamState,
    frame_id: str,
    question_id: str,
    *,
    via: str,
    approved: bool | None,
    content: frames.AnswerContent | None,
    now: int,
) -> list[Draft]:
    """Answer a question, once; the owner of the frame goes on with it."""
    question = open_question(state, frame_id, question_id)
    if question.within is not None:
        raise errors.Refused(f"Question {question_id} is part of question {question.within}. Answer that one.")
    if question.answer is not None:
        raise errors.AlreadyAnswered(f"Question {question_id} was answered already. Resume its frame.")
    if question.kind in ANSWER_REQUIRED and approved is None and (content is None or content.payload is None):
        raise errors.InvalidValue(f"Question {question_id} needs an answer: approve=True or False, or a payload.")
    if is_expired(question, now) and (via == "token" or question.on_expiry != "keep"):
        raise errors.QuestionExpired(
            f"Question {question_id} expired {now - (question.expires_at or 0)} ms ago. Issue a new token or ask again."
        )
    edited = content is not None and content.arguments is not None
    facts = frames.QuestionAnswered(frame=frame_id, question=question_id, via=via, approved=approved, edited=edited)
    return [Draft(type="question.answered", facts=facts, content=content)]


def reissue(
    state: StreamState, frame_id: str, question_id: str, token_hash: str, expires_at: int | None, now: int
) -> list[Draft]:
    """Issue a new link token, which expires with the question, or as given; the earlier one becomes void."""
    question = open_question(state, frame_id, question_id)
    if expires_at is None and is_expired(question, now):
        raise errors.QuestionExpired(f"Question {question_id} has expired. Give its new token a time: expires_ms=….")
    if question.within is not None:
        raise errors.Refused(
            f"Question {question_id} is part of question {question.within}. Issue a token for that one."
        )
    if question.answer is not None:
        raise errors.AlreadyAnswered(f"Question {question_id} was answered already and needs no token.")
    expires = question.expires_at if expires_at is None else expires_at
    facts = frames.QuestionReissued(frame=frame_id, question=question_id, token=token_hash, expires_at=expires)
    return [Draft(type="question.reissued", facts=facts)]


def resume(state: StreamState, frame_id: str, *, now: int) -> list[Draft]:
    """Resume a frame and those suspended with it: take the grants again and restart the clocks."""
    frame = live_frame(state, frame_id)
    question = frame.question
    if question is None:
        raise errors.InvalidTransition(
            f"Frame {frame_id} is {frame.status}, not suspended. There is nothing to resume.",
            before=frame.status,
            after="active",
        )
    if question.within is not None:
        raise errors.Refused(
            f"Frame {frame_id} was suspended with its parent, by question {question.within}. Resume that one."
        )
    line = ancestry(state.frames, frame_id)[:-1]
    for above in line:
        if above.question is not None:
            # It gave its unused grant back, so it has no tokens to lend.
            raise errors.FrameSuspended(
                f"Frame {above.id} above it waits for an answer to question {above.question.id}. Resume that one.",
                question=above.question.id,
            )
    bound = earliest_deadline(*(running_deadline(other, now) for other in line))
    drafts: list[Draft] = []
    available = {other.id: other.tokens for other in state.frames.values()}
    _resume_subtree(state, frame, now, bound, available, drafts)
    return drafts


def _resume_subtree(
    state: StreamState,
    frame: FrameState,
    now: int,
    bound: int | None,
    budgets: dict[str, TokenBudget],
    drafts: list[Draft],
) -> None:
    question = frame.question
    assert question is not None
    if frame.parent is not None and question.released:
        parent = replace(state.frames[frame.parent], lent=budgets[frame.parent].lent, question=None)
        check_available(parent, question.released)
        budgets[frame.parent] = replace(budgets[frame.parent], lent=parent.lent + question.released)
    deadline = None
    if frame.deadline is not None:
        deadline = earliest_deadline(frame.deadline + max(0, now - question.suspended_at), bound)
    facts = frames.FrameResumed(
        frame=frame.id,
        question=question.id,
        status="waiting" if has_live_children(state.frames, frame) else question.prior,
        parent=frame.parent,
        reserved_again=question.released,
        deadline=None if deadline == frame.deadline else deadline,
    )
    drafts.append(Draft(type="frame.resumed", facts=facts))
    for child in children(state.frames, frame.id):
        # A child with an open question of its own keeps waiting.
        if child.question is not None and child.question.within == (question.within or question.id):
            _resume_subtree(state, child, now, deadline or bound, budgets, drafts)


def open_question(state: StreamState, frame_id: str, question_id: str) -> Question:
    """Return the open question of a live frame."""
    frame = state.frames.get(frame_id)
    if frame is None or frame.question is None or frame.question.id != question_id:
        raise errors.QuestionNotFound(f"Question {question_id} is not open: its frame was resumed or has ended.")
    return frame.question


def is_expired(question: Question, now: int) -> bool:
    """Return True if the question expired without an answer."""
    return question.expires_at is not None and now > question.expires_at and question.answer is None


def is_resumable(question: Question, now: int) -> bool:
    """Return True if the frame can be resumed: the question is answered, or its timer rang."""
    return question.answer is not None or (question.until is not None and now >= question.until)


def check_options(options: Sequence[str] | None, recommended: str | None) -> list[str] | None:
    """Check the options of a question and return them as a list; the recommended one must be among them."""
    if options is None:
        return None
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        raise errors.InvalidValue("options must be a list of texts.")
    if recommended is not None and recommended not in options:
        raise errors.InvalidValue(f"{recommended!r} is recommended and not among the options.")
    return list(options)
