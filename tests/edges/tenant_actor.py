"""One tenant at work, and its answers with what is minted named by the order of its first appearance.

Two actors with the same tenant and seed make the same calls on two journals, so their answers can be compared: ids
become `id 1`, digests `digest 1`, cursors count the tenant's own events. Everything else must be equal as it is.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import ContextPack, Frame, HoldfastError, Session, Settings
from holdfast.effects import DeclaredEffect
from holdfast.ports import EndedConversation
from holdfast.testing.clock import SeededIds
from holdfast.types import Event
from tests.model.frames_walk import StillClock

SESSIONS = ("s", "t", "u")
SCOPES = ("user/ann", "user/1", "global", "session/s", "session/s/thread/main", "custom/notes/id/x")
NAMES = ("a", "b", "b/c", "d")
USERS = ("ann", "bob")
ACTORS = ("main", "clerk", "cook")
WORDS = ("amber", "birch", "cobalt", "dahlia", "elm", "fjord", "garnet", "hazel")
FRAME_IDS = tuple(f"01JY000000000000000000000{n}" for n in "ABC")
"""Ids that a caller may choose, and two tenants may choose the same."""

ULID = re.compile(r"(?<![0-9A-Za-z])[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}(?![0-9A-Za-z])")
_CUT = re.compile(r"(?<=…)[0-9A-HJKMNP-TV-Z]{1,25}(?![0-9A-Za-z])|(?<![0-9A-Za-z])[0-7][0-9A-HJKMNP-TV-Z]{0,24}(?=…)")
"""What is left of an id at the edge of a snippet."""
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MARK = re.compile(r"(?<=data )[0-9]{9}(?=>|&gt;)|(?<=data )[0-9]{1,9}(?=…)")
_CURSORS = frozenset({"seq", "last_seq", "last_event_seq", "log_seq", "at_seq"})


def by_words(texts: list[str]) -> list[list[float]]:
    """Vectors of which words occur, and a little of everything."""
    return [[0.05 + text.count(word) for word in WORDS] for text in texts]


def count_fours(text: str) -> int:
    return len(text) // 4 + 1


def shorter(messages: Any, *, max_tokens: int) -> str:
    """A summary: the first words of each message."""
    return " ".join(message.text.split(" ")[0] or message.role for message in messages)[: max_tokens * 3]


class SteadyIds(SeededIds):
    """Salts that are all alike: chance must not tell two journals apart."""

    def salt(self) -> bytes:
        return bytes(16)


class Place:
    """A client on a journal of its own, with everything that a client may bring."""

    def __init__(self, url: str | Path, *, embedder: Any = None, settings: Settings | None = None) -> None:
        self.clock = StillClock()
        self.told: dict[str, list[Any]] = defaultdict(list)
        """What everybody's sink and memory were given, by tenant."""
        self.hf = holdfast.open(
            url,
            durability="fast",
            settings=settings,
            clock=self.clock,
            ids=SteadyIds(self.clock),
            tokenizer=count_fours,
            memory=self,
            summarizer=shorter,
            embedder=embedder,
        )
        self.hf.effects.add_sink("mail", self.deliver)

    def take(self, ended: EndedConversation) -> None:
        said = {thread: [message.text for message in ended.messages(thread)] for thread in ended.threads}
        self.told[ended.tenant].append((ended.key, ended.session, ended.generation, ended.cause, said))

    def deliver(self, effect: DeclaredEffect) -> str:
        self.told[effect.tenant].append(effect)
        return "sent"


class Actor:
    """A tenant whose every choice follows from a seed."""

    def __init__(self, place: Place, tenant: str, seed: int) -> None:
        self.place, self.tenant = place, tenant
        self.hf = place.hf.tenant(tenant)
        self.random = random.Random(f"{seed} {tenant}")
        self.known: dict[str, list[Any]] = defaultdict(list)
        self.plain = Plain(self)
        self.at_work = ""
        """The call that is being made."""
        self.between: Callable[[], None] = lambda: None
        """What others do in the middle of it."""
        self.asked: list[DeclaredEffect] = []
        self.hf.effects.add_sink("crm", self.deliver)

    def deliver(self, effect: DeclaredEffect) -> Any:
        """The tenant's own sink, which refuses some things and fails at others."""
        self.asked.append(effect)
        self.between()
        if effect.payload == "never":
            raise holdfast.errors.EffectRefused("not this one")
        if effect.payload == "later" and effect.attempt < 3:
            raise ConnectionError("nobody there")
        return {"taken": len(self.asked)}

    def act(self, call: Callable[[Actor], Any]) -> Any:
        """Make a call; gives its answer in comparable form, also if it was refused."""
        self.at_work = call.__name__
        try:
            answer = call(self)
        except (HoldfastError, TypeError) as error:
            answer = error
        return self.plain(answer)

    # what to call with

    def one(self, pool: Any) -> Any:
        """One of these, by chance."""
        return self.random.choice(list(pool))

    def maybe(self, value: Any, share: float = 0.5) -> Any:
        """This, or None."""
        return value if self.random.random() < share else None

    def text(self) -> str:
        return " ".join(self.one(WORDS) for _ in range(self.random.randint(1, 6)))

    def key(self, what: str) -> str | None:
        """An idempotency key that comes again, now and then."""
        return self.maybe(f"{what}-{self.random.randint(1, 6)}", 0.4)

    def note(self, kind: str, value: Any) -> Any:
        """Remember something to call with later."""
        self.known[kind].append(value)
        return value

    def recent(self, kind: str, make: Callable[[], Any] | None = None) -> Any:
        """Something that was remembered lately; what `make` gives if there is nothing, or by chance."""
        kept = self.known[kind][-5:]
        if make is not None and (not kept or self.random.random() < 0.4):
            return self.note(kind, make())
        if not kept:
            raise holdfast.errors.NotFound(f"nothing of kind {kind} yet")
        return self.one(kept)

    def someone(self) -> holdfast.Holdfast:
        """The tenant, or one of its users."""
        user = self.maybe(self.one(USERS))
        return self.hf if user is None else self.hf.as_user(user)

    def talk(self) -> Session:
        """A session that takes messages."""
        session = self.someone().session(self.one(SESSIONS), thread=self.one(("main", "main", "b")))
        if session.details.status in ("closing", "closed"):
            session.reset()
        return session

    def state(self) -> holdfast.State:
        return self.someone().state(self.one(SCOPES))

    def frame(self) -> str:
        """A frame that was pushed lately, most often live."""
        return str(self.recent("frame", lambda: self.hf.index.push_frame(self.text(), scope=self.actor(), tokens=900)))

    def actor(self) -> str:
        return f"actor/{self.one(ACTORS)}"


class Plain:
    """Answers in builtin types, with minted names replaced."""

    def __init__(self, actor: Actor) -> None:
        self._hf = actor.hf
        self._names: dict[str, str] = {}
        self._seqs: list[int] = []

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | bytes):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Exception):
            return ["refused", type(value).__name__, self.text(str(value))]
        if isinstance(value, msgspec.Struct):
            return [type(value).__name__, {name: self._field(value, name) for name in value.__struct_fields__}]
        if isinstance(value, Mapping):
            return {self.text(str(name)): self(item) for name, item in value.items()}
        if isinstance(value, frozenset | set):
            return sorted(map(self, value))
        if isinstance(value, ContextPack):
            return {name: self(getattr(value, name)) for name in dir(value) if not name.startswith(("_", "to_"))}
        if isinstance(value, Session | Frame) or not isinstance(value, list | tuple | Iterator):
            return self.text(repr(value)) if not callable(value) or isinstance(value, Session | Frame) else "callable"
        return [self(item) for item in value]

    def _field(self, value: Any, name: str) -> Any:
        found = getattr(value, name)
        if name in _CURSORS:
            return self.rank(found)
        if name == "token" and isinstance(found, str) and not _DIGEST.fullmatch(found):
            return "token"
        return self(found)

    def text(self, text: str) -> str:
        """A text without what was minted."""
        text = text.replace(self._hf.env.leases.process.name, "this process")
        text = ULID.sub(lambda found: self._named("id", found[0].upper()), text)
        text = _CUT.sub("cut", text)
        text = _MARK.sub(lambda found: self._named("mark", found[0]), text)
        return _DIGEST.sub(lambda found: self._named("digest", found[0]), text)

    def _named(self, what: str, minted: str) -> str:
        return self._names.setdefault(minted, f"<{what} {len(self._names) + 1}>")

    def rank(self, cursor: int) -> int:
        """How many of the tenant's own events there are up to a cursor of the whole journal."""
        newer: Iterator[Event] = self._hf.journal.events(after=self._seqs[-1] if self._seqs else 0)
        self._seqs += [event.seq for event in newer]
        return bisect_right(self._seqs, cursor)


def difference(one: Any, other: Any, path: str = "") -> str:
    """The first place at which two answers differ, in words; nothing if they are equal."""
    if type(one) is type(other) and isinstance(one, dict) and one.keys() == other.keys():
        found = (difference(one[name], other[name], f"{path}.{name}") for name in one)
    elif type(one) is type(other) and isinstance(one, list) and len(one) == len(other):
        found = (difference(*pair, f"{path}[{number}]") for number, pair in enumerate(zip(one, other, strict=True)))
    else:
        return "" if one == other else f"{path}: {one!r:.300} is {other!r:.300} without the other tenant"
    return next((text for text in found if text), "")
