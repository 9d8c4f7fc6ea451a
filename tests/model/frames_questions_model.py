"""Questions in plain Python: asked, answered once, resumed root first."""

from __future__ import annotations

from typing import Any

from tests.model.frames_model import SCORES, No, Plan, Unit, Wait, least
from tests.model.frames_work_model import Work

KINDS = ("approval", "input", "external", "checkpoint", "pause", "timer")
PEOPLE = ("approval", "input")
NOTHING = (None, None, None)


class Questions(Work):
    """Suspend, answer once, resume root first."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[Any, ...]] = {}

    def asked(self, question: str) -> Unit | None:
        return next((unit for unit in self.live() if unit.question and unit.question.id == question), None)

    def with_token(self, token: str) -> Unit | None:
        return next((unit for unit in self.live() if unit.question and unit.question.token == token), None)

    # asking

    def suspend(
        self,
        frame: str,
        kind: str,
        expires_ms: int | None,
        on_expiry: str | None,
        until: int | None,
        subtree: bool,
        release: bool,
    ) -> Plan:
        unit = self.alive(frame)
        wrong = ["InvalidValue"] if kind not in KINDS or (until is None) == (kind == "timer") else []
        if on_expiry is not None and (expires_ms is None or on_expiry not in ("fail", "cancel", "keep")):
            wrong.append("InvalidValue")
        under = list(self.below(unit, here=True))
        if unit.question is not None:
            wrong.append("FrameSuspended")
        if any(other.scope != unit.scope for other in self.below(unit)):
            wrong.append("HasLiveChildren")
        awake = [other for other in under if other.question is None]
        if awake and not subtree:
            wrong.append("HasLiveChildren")
        if wrong:
            raise No(*wrong)
        expires = None if expires_ms is None else self.now + expires_ms
        policy = "keep" if on_expiry is None and expires is not None else on_expiry

        def apply(asked: Any) -> None:
            """`asked` is the question's id, its token, and the ids of the questions below, leaf first."""
            question, token, below = asked
            for other, id in zip(awake, below, strict=True):
                self.stop(other, Wait(id, kind, self.now, within=question), release)
            self.stop(
                unit,
                Wait(question, kind, self.now, expires=expires, on_expiry=policy, until=until, token=token),
                release,
            )

        return Plan(apply, (unit.scope,))

    def stop(self, unit: Unit, wait: Wait, release: bool) -> None:
        """Give the unused grant back, unless a model is still to be paid. Whoever is below has done so before."""
        parent = self.parent_here(unit)
        release = release and not any(kind == "model" for kind, _ in unit.calls.values())
        if release and parent is not None and unit.granted is not None:
            wait.released = max(0, unit.granted - unit.used - self.lent(unit))
            if wait.released:
                parent.at_error = False
        wait.prior = "active" if self.children(unit) else unit.status
        unit.status, unit.question, unit.at_error = "suspended", wait, False

    def retoken(self, question: str, token: str, expires_ms: int | None = None) -> None:
        """A new token: it expires when the question does, or as said."""
        wait = self.open_question(question)
        wait.token = token
        wait.expires = wait.expires if expires_ms is None else self.now + expires_ms

    def can_have_token(self, question: str) -> bool:
        unit = self.asked(question)
        wait = None if unit is None else unit.question
        return wait is not None and wait.answer is None and not self.late(wait)

    def reissue(self, question: str, expires_ms: int | None) -> Plan:
        wait = self.open_question(question)
        if wait.within is not None:
            raise No("Refused")
        if wait.answer is not None:
            raise No("AlreadyAnswered")
        if expires_ms is None and self.late(wait):
            raise No("QuestionExpired")
        return Plan(lambda token: self.retoken(question, token, expires_ms), inbox=True)

    def open_question(self, question: str) -> Wait:
        unit = self.asked(question)
        if unit is None or unit.question is None:
            raise No("QuestionNotFound")
        return unit.question

    # answering

    def answer(self, question: str | None, token: str | None, words: tuple[Any, ...]) -> Plan:
        if token is not None:
            unit = self.with_token(token)
            if unit is None or unit.question is None or unit.question.answer is not None:
                raise No("TokenNotFound")
            wait = unit.question
        else:
            assert question is not None
            wait = self.open_question(question)
        silent = ["InvalidValue"] if self.says_nothing(wait, words) else []
        if wait.within is not None:
            raise No("Refused", *silent)
        if wait.answer is not None:
            # Who clicks a link and then says the same by hand has not changed their mind.
            if wait.answer == words:
                return Plan(nothing_new)
            raise No("AlreadyAnswered", *silent)
        if self.late(wait) and (token is not None or wait.on_expiry != "keep"):
            raise No("QuestionExpired", *silent)
        if silent:
            raise No(*silent)
        return Plan(lambda _: setattr(wait, "answer", words), inbox=True)

    def says_nothing(self, wait: Wait, words: tuple[Any, ...] | None) -> bool:
        """People are asked for a yes, a no or a payload; `words` are these and a note."""
        return wait.kind in PEOPLE and (words is None or words[:2] == (None, None))

    def late(self, wait: Wait) -> bool:
        return wait.expires is not None and self.now > wait.expires and wait.answer is None

    # going on

    def resume(self, question: str | None, token: str | None, words: tuple[Any, ...] | None) -> Plan:
        """Let a frame go on; with an answer if none was given before. `words` is None if nothing is said."""
        if token is not None:
            unit = self.with_token(token)
            if unit is None or unit.question is None or unit.question.answer is not None:
                raise No("TokenNotFound")
        else:
            assert question is not None
            self.open_question(question)
            unit = self.asked(question)
        assert unit is not None
        wait = unit.question
        assert wait is not None
        if wait.within is not None:
            raise No("Refused")
        wrong = []
        if wait.answer is not None and words is not None and wait.answer != words:
            wrong.append("AlreadyAnswered")
        if wait.answer is None and self.says_nothing(wait, words):
            wrong.append("InvalidValue")
        if self.late(wait) and (token is not None or wait.on_expiry != "keep"):
            wrong.append("QuestionExpired")
        wrong += self.cannot_go_on(unit)
        if wrong:
            raise No(*wrong)

        def apply(_: Any) -> None:
            if wait.answer is None:
                wait.answer = words or NOTHING
            self.show_payload(unit)
            self.go_on(unit)

        return Plan(apply, (unit.scope,))

    def show_payload(self, unit: Unit) -> None:
        """The payload of an answer becomes evidence when its frame goes on."""
        wait = unit.question
        if wait is not None and wait.answer is not None and wait.answer[1] is not None:
            unit.handles[wait.id] = ["event_ref", SCORES["high"], None, None]

    def cannot_go_on(self, unit: Unit) -> list[str]:
        above = self.line(unit)[1:]
        wrong = ["FrameSuspended"] if any(other.question is not None for other in above) else []
        # Taking a grant again is tried root first; it fails where a parent has lent it meanwhile.
        taken: dict[str, int] = {}
        for other in self.woken(unit):
            parent = self.parent_here(other)
            assert other.question is not None
            if parent is None or not other.question.released or parent.granted is None:
                continue
            left = max(0, parent.granted - self.out(parent) - taken.get(parent.id, 0))
            if other.question.released > left:
                wrong.append("InsufficientTokens")
            taken[parent.id] = taken.get(parent.id, 0) + other.question.released
        return wrong

    def woken(self, unit: Unit) -> list[Unit]:
        """A frame and what was suspended with it, root first."""
        assert unit.question is not None
        within, found = unit.question.id, [unit]
        for at in found:
            found += [
                child
                for child in self.children(at, here=True)
                if child.question is not None and child.question.within == within
            ]
        return found

    def go_on(self, unit: Unit) -> None:
        """The clock of a frame stood still while it waited, and goes on within those of its ancestors."""
        woken = self.woken(unit)
        for other in woken:
            parent = self.parent_here(other)
            assert other.question is not None
            if other.deadline is not None:
                end = other.deadline + max(0, self.now - other.question.since)
                other.deadline = least(end, *(self.runs_until(line) for line in self.line(other)[1:]))
            if parent is not None and other.question.released:
                parent.at_error = False
        for other in woken:
            assert other.question is not None
            prior, other.question, other.at_error = other.question.prior, None, False
            other.status = "waiting" if self.children(other) else prior


def nothing_new(_: Any) -> None:
    """It was so before."""
