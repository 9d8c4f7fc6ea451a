"""Questions: asked with an id and perhaps a token, answered once from anywhere, resumed by the owner."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.frames import evidence
from holdfast.core.frames import questions as rules
from holdfast.core.frames.stack import add_clock_events, walk_leaf_first
from holdfast.core.journal.codec import decode_event
from holdfast.core.lazy import lazy_module
from holdfast.core.numbers import MAX_AMOUNT, check_number
from holdfast.errors import AlreadyAnswered, InvalidValue, KeyReused, QuestionNotFound, Refused, TokenNotFound
from holdfast.flow.frames.lifecycle import change_frame, check_live, match_event
from holdfast.flow.frames.read import (
    content_field,
    find_frame_stream,
    find_question_row,
    load_current_state,
    read_event,
    row_ulid,
)
from holdfast.flow.journal.append import ChangeResult, Drafts, States, decide_and_append, redact_as_configured
from holdfast.ports import Env
from holdfast.records.batches import Row, RowQuery
from holdfast.records.events import frames
from holdfast.records.events.envelope import ERASED, Draft, Event
from holdfast.records.frames import Question, StreamState
from holdfast.records.ids import own_key, ulid_text
from holdfast.records.recovery import Answer, QuestionReceipt

if TYPE_CHECKING:
    import secrets
else:
    secrets = lazy_module(__name__, "secrets")

TOKEN_BYTES = 32


def hash_token(token: object) -> str:
    """Return the hash under which a token is stored."""
    if not isinstance(token, str) or not token:
        raise InvalidValue("A token is the text that was shown when the question was asked.")
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


def suspend_frame(
    env: Env,
    frame_id: str,
    content: frames.QuestionContent,
    *,
    kind: str = "approval",
    token: bool = False,
    expires_ms: int | None = None,
    on_expiry: str | None = None,
    until: int | None = None,
    call: str | None = None,
    subtree: bool = False,
    leave_away: bool = False,
    release: bool = True,
    key: str | None = None,
) -> QuestionReceipt:
    """Suspend a frame until its question is answered. A retry with the key returns the same id and a new token."""
    secret = secrets.token_urlsafe(TOKEN_BYTES) if token else None
    content = redact_as_configured(env, content)
    new = ulid_text(env.ids.ulid())

    def decide(state: StreamState) -> list[Draft]:
        now = env.clock.now_ms()
        under = [frame for frame in walk_leaf_first(state.frames, frame_id) if frame.question is None]
        facts = frames.FrameSuspendedFacts(
            frame=frame_id,
            question=new,
            kind=kind,
            prior="active",
            expires_at=_expiry(expires_ms, now),
            on_expiry=on_expiry if on_expiry is not None or expires_ms is None else "keep",
            until=None if until is None else check_number("until", until, least=0, most=MAX_AMOUNT),
            token=None if secret is None else hash_token(secret),
            call=call,
        )
        ids = [ulid_text(env.ids.ulid()) for _ in under]
        return rules.suspend(state, facts, content, subtree=subtree, release=release, below=ids, leave_away=leave_away)

    changed = change_frame(env, frame_id, decide, key=key, same=_match_question(frame_id, kind, call, content))
    question: str = changed.last_facts("frame.suspended").question
    if changed.repeated and secret is not None:
        secret = reissue_token_if_open(env, question)
    return QuestionReceipt(question=question, frame=frame_id, token=secret, repeated=changed.repeated)


def _expiry(expires_ms: int | None, now: int) -> int | None:
    return None if expires_ms is None else now + check_number("expires_ms", expires_ms, least=1, most=MAX_AMOUNT)


def _match_question(
    frame_id: str, kind: str, call: str | None, content: frames.QuestionContent
) -> Callable[[list[Event]], bool]:
    """Return a predicate: a key stands for this question. About an interrupted call, only the call is compared."""
    if call is None:
        return match_event("frame.suspended", content, frame=frame_id, kind=kind)
    return lambda events: any(
        event.type == "frame.suspended" and (event.facts.frame, event.facts.call) == (frame_id, call)
        for event in events
    )


def reissue_token_if_open(env: Env, question: str) -> str | None:
    """Return a new token for a question asked before, or None if it can no longer be answered."""
    try:
        return reissue_token(env, question)
    except QuestionNotFound:
        return None


def reissue_token(env: Env, question_id: str, expires_ms: int | None = None) -> str:
    """Return a new token for an open question and void the earlier one. It expires with the question, or as given."""
    stream, row = find_question_row(env, question_id)
    frame_id = row_ulid(row, "frame_id")
    secret = secrets.token_urlsafe(TOKEN_BYTES)

    def decide(states: States) -> Drafts:
        now = env.clock.now_ms()
        state, expires = states[stream], _expiry(expires_ms, now)
        return {stream: rules.reissue(state, frame_id, question_id, hash_token(secret), expires, now)}

    decide_and_append(env, (stream,), decide)
    return secret


def answer_question(
    env: Env,
    *,
    question: str | None = None,
    token: str | None = None,
    approved: bool | None = None,
    content: frames.AnswerContent | None = None,
) -> str:
    """Answer a question by its id or by its token, and return its id."""
    stream, row = _find_row(env, question, token)
    content = redact_as_configured(env, content)
    frame_id, question_id = row_ulid(row, "frame_id"), row_ulid(row, "question_id")
    via = "id" if token is None else "token"

    def decide(states: States) -> Drafts:
        _check_token(rules.open_question(states[stream], frame_id, question_id), token)
        state, now = states[stream], env.clock.now_ms()
        drafts = rules.answer(state, frame_id, question_id, via=via, approved=approved, content=content, now=now)
        return {stream: drafts}

    same = match_event("question.answered", content, question=question_id, approved=approved)
    try:
        changed = decide_and_append(env, (stream,), decide, key=answer_key(question_id), same=same)
    except KeyReused:
        if token is not None:
            raise TokenNotFound from None
        raise AlreadyAnswered(f"Question {question_id} was answered already, in another way.") from None
    if changed.repeated and token is not None:
        raise TokenNotFound
    return question_id


def _check_token(question: Question, token: str | None) -> None:
    """Refuse a token that was replaced after it was looked up."""
    if token is not None and question.token != hash_token(token):
        raise TokenNotFound


def answer_key(question_id: str) -> str:
    """Return the key of an answer: one question has one."""
    return own_key(question_id, "answer")


def is_waiting_for(env: Env, frame_id: str, question_id: str) -> bool:
    """Return True if a frame is suspended by this question now."""
    frame = load_current_state(env, find_frame_stream(env, frame_id)).frames.get(frame_id)
    return frame is not None and frame.question is not None and frame.question.id == question_id


def find_question_frame(env: Env, question: str | None, token: str | None) -> tuple[str, bool]:
    """Return the frame of a question or token, and True if it is answered."""
    row = _find_row(env, question, token)[1]
    return row_ulid(row, "frame_id"), row["answer_version"] is not None


def _find_row(env: Env, question: str | None, token: str | None) -> tuple[str, Row]:
    if (question is None) == (token is None):
        raise InvalidValue("Answer a question by its id, or with its token.")
    if token is None:
        assert question is not None
        return find_question_row(env, question)
    raw = bytes.fromhex(hash_token(token))
    found = env.journal.select(env.tenant, RowQuery(table="suspended_frames", column="token_id", value=raw, limit=1))
    if not found:
        raise TokenNotFound
    return found[0]


def resume_frame(
    env: Env,
    frame_id: str,
    *,
    bring: bool = False,
    token: str | None = None,
    approved: bool | None = None,
    content: frames.AnswerContent | None = None,
) -> ChangeResult:
    """Resume a suspended frame. `bring` answers its question in the same append, with `token` as the right to."""
    content = redact_as_configured(env, content)
    stream = find_frame_stream(env, frame_id)
    frame = load_current_state(env, stream).frames.get(frame_id)
    question = None if frame is None else frame.question
    if bring and question is not None and question.answer is not None and (approved is not None or content is not None):
        _check_same_answer(env, stream, question.id, approved, content)
    brings = bring and question is not None and question.answer is None and question.within is None

    def decide(states: States) -> Drafts:
        state = states[stream]
        waiting = check_live(env, state, frame_id).question
        now, drafts = env.clock.now_ms(), []
        if brings and waiting is not None:
            _check_token(waiting, token)
            via = "id" if token is None else "token"
            drafts = rules.answer(state, frame_id, waiting.id, via=via, approved=approved, content=content, now=now)
        elif waiting is not None and waiting.within is None and not rules.is_resumable(waiting, now):
            raise Refused(f"Question {waiting.id} has no answer yet. Answer it, or pass the answer along.")
        drafts += rules.resume(state, frame_id, now=now)
        if waiting is not None:
            drafts += _attach_payload(env, stream, state, frame_id, waiting, content if brings else None)
        return {stream: add_clock_events(state, drafts, now)}

    if not brings or question is None:
        return decide_and_append(env, (stream,), decide)
    same = match_event("question.answered", content, question=question.id, approved=approved)
    try:
        changed = decide_and_append(env, (stream,), decide, key=answer_key(question.id), same=same)
    except KeyReused:
        raise AlreadyAnswered(f"Question {question.id} was answered already, in another way.") from None
    if changed.repeated and not any(name == "frame.resumed" for name, _ in changed.facts):
        return resume_frame(env, frame_id)  # The same answer was given elsewhere meanwhile.
    return changed


def _attach_payload(
    env: Env, stream: str, state: StreamState, frame_id: str, question: Question, given: frames.AnswerContent | None
) -> list[Draft]:
    """Return the event that attaches an answer's payload to its frame as evidence, so that its next pack shows it.

    `given` is the answer if it is the first event of the same append.
    """
    version, payload = state.version + 1, None if given is None else given.payload
    if question.answer is not None:
        version, payload = question.answer, content_field(read_event(env, stream, question.answer), "payload")
    if payload is None or payload is ERASED:
        return []
    # As it will be when the frame has resumed.
    awake = {**state.frames, frame_id: replace(state.frames[frame_id], question=None)}
    content = frames.HandleContent(description="The answer to what was asked here.", target=f"{stream}@{version}")
    return evidence.add_handle(
        replace(state, frames=awake), frame_id, question.id, "event_ref", priority="high", content=content
    )


def _check_same_answer(
    env: Env, stream: str, question: str, approved: bool | None, content: frames.AnswerContent | None
) -> None:
    known, given = read_answer(env, stream, question), content or frames.AnswerContent()
    if known is not None and (known.approved, known.payload, known.arguments, known.note) != (
        approved,
        given.payload,
        given.arguments,
        given.note,
    ):
        raise AlreadyAnswered(f"Question {question} was answered already, in another way. Resume without an answer.")


def read_answer(env: Env, stream: str, question: str) -> Answer | None:
    """Return the answer to a question, or None; also after its frame was resumed."""
    stored = env.journal.events_by_key(env.tenant, stream, answer_key(question))
    if not stored:
        return None
    event = decode_event(stored[0])
    words = ("payload", "arguments", "note")
    erased = event.content is ERASED
    known = {name: ERASED if erased else getattr(event.content, name, None) for name in words}
    return Answer(question=question, approved=event.facts.approved, via=event.facts.via, at=event.at, **known)
