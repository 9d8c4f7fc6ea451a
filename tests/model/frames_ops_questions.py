"""Operations of a walk: asking, answering and going on."""

from __future__ import annotations

from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from tests.model import frames_look as look
from tests.model.frames_pick import scope_of, some_frame
from tests.model.frames_questions_model import KINDS, NOTHING
from tests.model.frames_walk import SCOPES, Op, Walk


def suspend(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: unit.question is None)
    if walk.random.random() < 0.2:
        frame = some_frame(walk, lambda unit: unit.stopped is not None)
    kind = walk.random.choice((*KINDS, *KINDS, "quiz"))
    until = walk.clock.now_ms() + walk.random.choice((0, 10_000, 60_000)) if kind == "timer" else None
    if walk.random.random() < 0.05:
        until = None if until else walk.clock.now_ms()
    expires = walk.random.choice((None, None, 5_000, 50_000))
    on_expiry = walk.random.choice((None, "fail", "cancel", "keep")) if expires or walk.random.random() < 0.1 else None
    rules: dict[str, Any] = {"kind": kind, "expires_ms": expires, "on_expiry": on_expiry, "until": until}
    rules |= {"subtree": walk.random.random() < 0.5}
    release_budget, token = walk.random.random() < 0.8, walk.random.random() < 0.5
    unit = walk.model.units.get(frame)
    awake = [] if unit is None else [other for other in walk.model.below(unit, here=True) if other.question is None]
    scope = scope_of(walk, frame)

    def learn_ids(asked: Any) -> Any:
        frames = walk.journal.load(look.TENANT, scope).frames
        return asked.question, asked.token, [frames[other.id].question.id for other in awake]

    def after(asked: Any) -> None:
        walk.questions.append(asked.question)
        walk.tokens += [asked.token] if asked.token else []

    def again(first: Any, second: Any) -> None:
        assert first.question == second.question
        assert (second.token is not None) == (token and walk.model.can_have_token(second.question))
        if second.token is not None:
            walk.tokens.append(second.token)
            walk.model.retoken(second.question, second.token)

    def act(index: IndexView, key: str | None, reason: str = "why") -> Any:
        return index.suspend_frame(frame, reason, token=token, release_budget=release_budget, key=key, **rules)

    return Op(
        "suspend",
        {"frame": frame, "token": token, "release": release_budget, **rules},
        scope,
        lambda: walk.model.suspend(frame, release=release_budget, **rules),
        act,
        lambda index, key: act(index, key, "why not"),
        frame=frame,
        keyed=True,
        learn=learn_ids,
        after=after,
        again=again,
    )


def some_question(walk: Walk) -> str | None:
    units = walk.model.live()
    if walk.random.random() < 0.15:  # One below another that waits, too.
        units = [unit for unit in units if any(other.question is not None for other in walk.model.line(unit)[1:])]
    open_ones = [unit.question.id for unit in units if unit.question is not None]
    if open_ones and walk.random.random() < 0.95:
        return walk.random.choice(open_ones)
    return walk.random.choice(walk.questions) if walk.questions else None


def answer(walk: Walk) -> Op | None:
    question, token = some_question(walk), None
    if walk.tokens and walk.random.random() < 0.5:
        question, token = None, walk.random.choice((*walk.tokens[-6:], *walk.tokens[-2:], "forged"))
    if question is None and token is None:
        return None
    words = some_words(walk)
    if walk.said and walk.random.random() < 0.35:
        asked, token, words = walk.said[-1]  # Word for word, as somebody would who clicks twice, or says it by hand.
        question, token = (None, token) if token and walk.random.random() < 0.7 else (asked, None)
    approve, payload, note = words
    return Op(
        "answer",
        {"question": question, "token": token, "approve": approve, "payload": payload, "note": note},
        "",
        lambda: walk.model.answer(question, token, words),
        lambda index, key: Holdfast(index.env, owner=False).answer(
            question, token=token, approve=approve, payload=payload, note=note
        ),
        after=lambda answered: walk.said.append((answered, token, words)),
        repeatable=token is None,
    )


def some_words(walk: Walk) -> tuple[Any, ...]:
    """Yes, no, something else, or nothing, each with a note or without."""
    if walk.random.random() < 0.15:
        return walk.random.choice((NOTHING, (None, None, "note")))
    approve, payload = walk.random.choice(((True, None), (False, None), (None, {"a": 1}), (True, "b")))
    return approve, payload, walk.random.choice((None, "note"))


def reissue(walk: Walk) -> Op | None:
    question = some_question(walk)
    if question is None:
        return None
    expires = walk.random.choice((None, 5_000, 50_000))
    return Op(
        "reissue",
        {"question": question, "expires_ms": expires},
        "",
        lambda: walk.model.reissue(question, expires),
        lambda index, key: index.reissue_token(question, expires_ms=expires),
        after=lambda token: walk.tokens.append(token),
    )


def resume(walk: Walk) -> Op | None:
    question, token = some_question(walk), None
    if walk.tokens and walk.random.random() < 0.25:
        question, token = None, walk.random.choice((*walk.tokens[-4:], "forged"))
    if question is None and token is None:
        return None
    said: tuple[Any, ...] | None = some_words(walk)
    unit = walk.model.asked(question) if question is not None else walk.model.with_token(str(token))
    if said == NOTHING or walk.random.random() < (0.8 if unit and unit.question and unit.question.answer else 0.25):
        said = None
    words = said
    how: dict[str, Any] = {} if words is None else dict(zip(("approve", "payload", "note"), words, strict=True))
    return Op(
        "resume",
        {"question": question, "token": token, **how},
        SCOPES[0] if unit is None else unit.scope,
        lambda: walk.model.resume(question, token, words),
        lambda index, key: index.resume_frame(question, token=token, **how),
        frame=None if unit is None else unit.id,
    )
