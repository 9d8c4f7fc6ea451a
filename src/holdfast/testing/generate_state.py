"""Random but valid histories of entries, edges and effects in one scope, as drafts."""

from __future__ import annotations

from random import Random

from holdfast.ports import Ids
from holdfast.records.events import state
from holdfast.records.events.envelope import Draft
from holdfast.records.ids import OperatorId, ulid_text
from holdfast.testing.generate_frames import WORDS

KEYS = ("prefs", "user_1", "user_%", "a/b", "née", "日記", "note 7", "Prefs")
KINDS = ("knows", "cites", "is part of")
SINKS = ("crm", "mail")
FAR_FUTURE_MS = 4_000_000_000_000


class StateGenerator:
    """A generator of the entries of one scope. Content belongs to a random one of `subjects`."""

    def __init__(self, random: Random, ids: Ids, scope: str, subjects: tuple[str, ...] = ()) -> None:
        self._random = random
        self._ids = ids
        self.scope = scope
        self._subjects = subjects
        self._waiting: list[tuple[str, str]] = []
        self._edges: list[tuple[str, str, str]] = []

    def step(self) -> list[Draft]:
        """Return the next change."""
        others = (self._delete, self._link, self._unlink, self._declare, self._settle)
        return [self._random.choice((self._write, self._write, self._write, *others))()]

    def _random_subject(self) -> str | None:
        return self._random.choice(self._subjects) if self._subjects else None

    def _write(self) -> Draft:
        chance = self._random
        facts = state.StateWritten(
            key=chance.choice(KEYS),
            tier=chance.choice((None, "hot", "cold")),
            lifetime=chance.choice((None, "durable", "session")),
            content_kind=chance.choice((None, "episodic")),
            salience=chance.choice((None, 0.25, 1.0)),
            expires_at=chance.choice((None, None, FAR_FUTURE_MS, FAR_FUTURE_MS + chance.randrange(1_000))),
        )
        value = chance.choice((chance.randrange(100), " ".join(chance.choices(WORDS, k=5)), {"a": [1, None]}, None))
        content = state.ValueContent(value=value)
        return Draft(type="state.written", facts=facts, content=content, subject=self._random_subject())

    def _delete(self) -> Draft:
        return Draft(type="state.deleted", facts=state.StateDeleted(key=self._random.choice(KEYS)))

    def _link(self) -> Draft:
        source, kind, target = self._random.choice(KEYS), self._random.choice(KINDS), self._random.choice(KEYS)
        self._edges.append((source, kind, target))
        facts = state.StateLinked(source=source, kind=kind, target=target, target_scope=self.scope, weight=0.5)
        return Draft(type="state.linked", facts=facts, content=state.ValueContent(value={"since": 1}))

    def _unlink(self) -> Draft:
        if not self._edges or self._random.random() < 0.5:
            return self._link()
        source, kind, target = self._edges.pop(self._random.randrange(len(self._edges)))
        facts = state.StateUnlinked(source=source, kind=kind, target=target, target_scope=self.scope)
        return Draft(type="state.unlinked", facts=facts)

    def _declare(self) -> Draft:
        effect, sink = ulid_text(self._ids.ulid()), self._random.choice(SINKS)
        self._waiting.append((effect, sink))
        approval = self._random.random() < 0.2
        facts = state.EffectDeclared(
            effect=effect, kind="custom", sink=sink, operator=OperatorId("op"), needs_approval=approval
        )
        content = state.EffectContent(payload={"n": self._random.randrange(9)})
        return Draft(type="effect.declared", facts=facts, content=content, subject=self._random_subject())

    def _settle(self) -> Draft:
        if not self._waiting:
            return self._declare()
        effect, sink = self._random.choice(self._waiting)
        outcome = self._random.choice(("applied", "skipped", "failed", "deferred", "dead", "revived"))
        if outcome == "revived":
            return Draft(type="effect.revived", facts=state.EffectRevived(effect=effect, sink=sink))
        if outcome in ("applied", "skipped"):
            self._waiting.remove((effect, sink))
        again = FAR_FUTURE_MS + self._random.randrange(1_000) if outcome == "failed" else None
        tries = self._random.randrange(1, 5)
        facts = state.EffectSettled(effect=effect, sink=sink, outcome=outcome, attempts=tries, retry_at=again)
        return Draft(type="effect.settled", facts=facts)
