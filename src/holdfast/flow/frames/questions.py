"""Questions: asked with an id and perhaps a token, answered once from anywhere, resumed by the owner."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from holdfast.core.frames import budgets
from holdfast.core.frames import questions as rules
from holdfast.core.frames.stack import leaf_first, live_frame, with_clocks
from holdfast.core.journal.codec import decode_event
from holdfast.errors import AlreadyAnswered, InvalidValue, KeyReused, QuestionNotFound, Refused, TokenNotFound
from holdfast.flow.frames.lifecycle import check_live, like, on_frame
from holdfast.flow.frames.read import current, question_row, raw_id, stream_of
from holdfast.flow.journal.append import Changed, Drafts, States, change
from holdfast.flow.journal.redact import clean
from holdfast.ports import Acting, Ports
from holdfast.records.batches import Row
from holdfast.records.events import frames
from holdfast.records.events.envelope import ERASED, Draft, Event
from holdfast.records.frames import Question, StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.recovery import Answer, Asked

TOKEN_BYTES = 32


def token_hash(token: object) -> str:
    """Return the hash under which a token is stored."""
    if not isinstance(token, str) or not token:
        raise InvalidValue("A token is the text that was shown when the question was asked.")
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


def suspend(
    ports: Ports,
    acting: Acting,
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
) -> Asked:
    """Suspend a frame until its question is answered. A retry with the key returns the same id and a new token."""
    secret = secrets.token_urlsafe(TOKEN_BYTES) if token else None
    content = clean(ports, content)
    new = ulid_text(ports.ids.ulid())

    def decide(state: StreamState) -> list[Draft]:
        now = ports.clock.now_ms()
        under = [frame for frame in leaf_first(state.frames, frame_id) if frame.question is None]
        facts = frames.FrameSuspended(
            frame=frame_id,
            question=new,
            kind=kind,
            prior="active",
            expires_at=None if expires_ms is None else now + budgets.whole(expires_ms, "expires_ms", 1),
            on_expiry=on_expiry if on_expiry is not None or expires_ms is None else "keep",
            until=None if until is None else budgets.whole(until, "until"),
            token=None if secret is None else token_hash(secret),
            call=call,
        )
        ids = [ulid_text(ports.ids.ulid()) for _ in under]
        return rules.suspend(state, facts, content, subtree=subtree, release=release, below=ids, leave_away=leave_away)

    changed = on_frame(ports, acting, frame_id, decide, key=key, same=_same_question(frame_id, kind, call, content))
    question: str = changed.last("frame.suspended").question
    if changed.repeated and secret is not None:
        secret = new_token(ports, acting, question)
    return Asked(question=question, frame=frame_id, token=secret, repeated=changed.repeated)


def _same_question(
    frame_id: str, kind: str, call: str | None, content: frames.QuestionContent
) -> Callable[[list[Event]], bool]:
    """Return a predicate: a key stands for this question. About an interrupted call, only the call is compared."""
    if call is None:
        return like("frame.suspended", content, frame=frame_id, kind=kind)
    return lambda events: any(
        event.type == "frame.suspended" and (event.facts.frame, event.facts.call) == (frame_id, call)
        for event in events
    )


def new_token(ports: Ports, acting: Acting, question: str) -> str | None:
    """Return a new token for a question asked before, or None if it can no longer be answered."""
    try:
        return reissue(ports, acting, question)
    except QuestionNotFound:
        return None


def reissue(ports: Ports, acting: Acting, question_id: str, expires_ms: int | None = None) -> str:
    """Return a new token for an open question and void the earlier one. It expires with the question, or as given."""
    stream, row = question_row(ports, acting, question_id)
    frame_id = _ulid(row, "frame_id")
    secret = secrets.token_urlsafe(TOKEN_BYTES)

    def decide(states: States) -> Drafts:
        now = ports.clock.now_ms()
        expires = None if expires_ms is None else now + budgets.whole(expires_ms, "expires_ms", 1)
        if expires is None:
            expires = rules.still_open(states[stream], frame_id, question_id, now).expires_at
        return {stream: rules.reissue(states[stream], frame_id, question_id, token_hash(secret), expires)}

    change(ports, acting, (stream,), decide)
    return secret


def answer(
    ports: Ports,
    acting: Acting,
    *,
    question: str | None = None,
    token: str | None = None,
    approved: bool | None = None,
    content: frames.AnswerContent | None = None,
) -> str:
    """Answer a question by its id or by its token, and return its id."""
    stream, row = _find(ports, acting, question, token)
    content = clean(ports, content)
    frame_id, question_id = _ulid(row, "frame_id"), _ulid(row, "question_id")
    via = _via(token)

    def decide(states: States) -> Drafts:
        _check_token(rules.asked(states[stream], frame_id, question_id), token)
        drafts = rules.answer(
            states[stream],
            frame_id,
            question_id,
            via=via,
            approved=approved,
            content=content,
            now=ports.clock.now_ms(),
        )
        return {stream: drafts}

    same = like("question.answered", content, question=question_id, approved=approved)
    try:
        changed = change(ports, acting, (stream,), decide, key=answer_key(question_id), same=same)
    except KeyReused:
        if token is not None:
            raise TokenNotFound from None
        raise AlreadyAnswered(f"Question {question_id} was answered already, in another way.") from None
    if changed.repeated and token is not None:
        raise TokenNotFound
    return question_id


def _via(token: str | None) -> str:
    return "id" if token is None else "token"


def _check_token(question: Question, token: str | None) -> None:
    """Refuse a token that was replaced after it was looked up."""
    if token is not None and question.token != token_hash(token):
        raise TokenNotFound


def answer_key(question_id: str) -> str:
    """Return the key of an answer: one question has one."""
    return f"{question_id}/answer"


def waits_for(ports: Ports, acting: Acting, frame_id: str, question_id: str) -> bool:
    """Return True if a frame is suspended by this question now."""
    frame = current(ports, acting, stream_of(ports, acting, frame_id)).frames.get(frame_id)
    return frame is not None and frame.question is not None and frame.question.id == question_id


def found(ports: Ports, acting: Acting, question: str | None, token: str | None) -> tuple[str, bool]:
    """Return the frame of a question or token, and True if it is answered."""
    row = _find(ports, acting, question, token)[1]
    return _ulid(row, "frame_id"), row["answer_version"] is not None


def _find(ports: Ports, acting: Acting, question: str | None, token: str | None) -> tuple[str, Row]:
    if (question is None) == (token is None):
        raise InvalidValue("Answer a question by its id, or with its token.")
    if token is None:
        assert question is not None
        return question_row(ports, acting, question)
    raw = bytes.fromhex(token_hash(token))
    found = ports.journal.find(acting.tenant, "suspended_frames", "token_id", raw, b"", 1)
    if not found:
        raise TokenNotFound
    return found[0]


def _ulid(row: Row, name: str) -> str:
    raw = row[name]
    assert isinstance(raw, bytes)
    return ulid_text(raw)


def resume(
    ports: Ports,
    acting: Acting,
    frame_id: str,
    *,
    bring: bool = False,
    token: str | None = None,
    approved: bool | None = None,
    content: frames.AnswerContent | None = None,
) -> Changed:
    """Resume a suspended frame. `bring` answers its question in the same append, with `token` as the right to."""
    raw_id(frame_id)
    content = clean(ports, content)
    stream = stream_of(ports, acting, frame_id)
    frame = current(ports, acting, stream).frames.get(frame_id)
    question = None if frame is None else frame.question
    if bring and question is not None and question.answer is not None and (approved is not None or content is not None):
        _check_same(ports, acting, stream, question.id, approved, content)
    brings = bring and question is not None and question.answer is None and question.within is None

    def decide(states: States) -> Drafts:
        state = states[stream]
        check_live(ports, acting, state, frame_id)
        now, drafts = ports.clock.now_ms(), []
        waiting = live_frame(state, frame_id).question
        if brings and waiting is not None:
            _check_token(waiting, token)
            drafts = rules.answer(
                state, frame_id, waiting.id, via=_via(token), approved=approved, content=content, now=now
            )
        elif waiting is not None and waiting.within is None and not rules.due(waiting, now):
            raise Refused(f"Question {waiting.id} has no answer yet. Answer it, or pass the answer along.")
        return {stream: with_clocks(state, [*drafts, *rules.resume(state, frame_id, now=now)], now)}

    if not brings or question is None:
        return change(ports, acting, (stream,), decide)
    same = like("question.answered", content, question=question.id, approved=approved)
    try:
        changed = change(ports, acting, (stream,), decide, key=answer_key(question.id), same=same)
    except KeyReused:
        raise AlreadyAnswered(f"Question {question.id} was answered already, in another way.") from None
    if changed.repeated and not any(name == "frame.resumed" for name, _ in changed.facts):
        return resume(ports, acting, frame_id)  # The same answer was given elsewhere meanwhile.
    return changed


def _check_same(
    ports: Ports,
    acting: Acting,
    stream: str,
    question: str,
    approved: bool | None,
    content: frames.AnswerContent | None,
) -> None:
    known, given = answer_of(ports, acting, stream, question), content or frames.AnswerContent()
    if known is not None and (known.approved, known.payload, known.arguments, known.note) != (
        approved,
        given.payload,
        given.arguments,
        given.note,
    ):
        raise AlreadyAnswered(f"Question {question} was answered already, in another way. Resume without an answer.")


def answer_of(ports: Ports, acting: Acting, stream: str, question: str) -> Answer | None:
    """Return the answer to a question, or None; also after its frame was resumed."""
    stored = ports.journal.by_key(acting.tenant, stream, answer_key(question))
    if not stored:
        return None
    event = decode_event(stored[0])
    words = ("payload", "arguments", "note")
    erased = event.content is ERASED
    known = {name: ERASED if erased else getattr(event.content, name, None) for name in words}
    return Answer(question=question, approved=event.facts.approved, via=event.facts.via, at=event.at, **known)
