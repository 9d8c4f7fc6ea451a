"""Worlds to pack: a session, a stack of frames in it, evidence of every priority, briefs, summaries and pins.

Everything is drawn from a seeded generator. Every text says which one it is, so that a test knows what must be found
again without asking the packer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

import holdfast
from holdfast import ContextPack, Frame, Holdfast, Limits, Message, Session, ToolCallRequest
from holdfast.errors import BudgetTooSmall
from tests.sessions.generated import as_dicts, conversation, text, tool_name

MODEL = "gpt-4o"
PRIORITIES = ("critical", "high", "medium", "low", "background")
LEVELS = ("none", "light", "moderate", "aggressive", "critical")
SEATS = ("session", "root", "child", "grandchild", "alone")
WIDE = Limits(context_tokens=10_000_000, depth=8)
PLENTY = 1_000_000
TOOLS = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object"}}}
    for name, about in (("find", "Looks for something."), ("book", "Books it."), ("pay", "Pays for it."))
]


class Attached(NamedTuple):
    """Evidence of a frame, as it was attached."""

    id: str
    priority: str
    body: str
    broken: bool = False


class World:
    """Something to pack, and what is known about it."""

    def __init__(self, hf: Holdfast, rng: random.Random, session: Session) -> None:
        self.hf, self.rng, self.session = hf, rng, session
        self.frame: Frame | None = None
        self.attached: list[Attached] = []
        self.above: list[Attached] = []
        self.instructions: list[str] = []
        """What must be found in the system prompt."""
        self.notes: list[str] = []
        """What must be found beside it: words of somebody who may not instruct, and inputs."""
        self.goals: list[str] = []

    @property
    def seat(self) -> Session | Frame:
        """Who is packed for."""
        return self.session if self.frame is None else self.frame

    def pack(self, budget: int | None = None, **asked: Any) -> ContextPack:
        """A pack for whoever this world is about."""
        return self.seat.pack(budget, **asked)

    def begin(self, pack: ContextPack) -> str:
        """Journal it as the next model call."""
        if self.frame is None:
            return self.session.packs.begin_model_call(pack)
        call = self.hf.index.begin_model_call(self.frame.id, pack)
        self.hf.index.end_model_call(self.frame.id, call)
        return call

    def append(self, given: Any, **more: Any) -> Any:
        """Say something in the line that is packed."""
        return self.seat.append(given, **more)

    def messages(self) -> list[Message]:
        """The line that is packed, as it was said."""
        return self.seat.messages()

    def required(self, budget: int, **asked: Any) -> int:
        """What a pack that is refused says that it takes; 0 if it is not refused."""
        try:
            self.pack(budget, **asked)
        except BudgetTooSmall as error:
            return error.required
        return 0

    def forget(self) -> None:
        """Empty what the client keeps in memory for the next pack."""
        recent = self.hf.env.recent
        assert recent is not None
        recent.clear()


@contextmanager
def world(hf: Holdfast, rng: random.Random, *, seat: str | None = None, turns: int | None = None) -> Iterator[World]:
    """What is packed is a session, a root frame in it, a frame further down, or one that has no session."""
    seat = rng.choice(SEATS) if seat is None else seat
    words = f"system-words {text(rng, 12)}" if rng.random() < 0.8 else None
    system = rng.choice([None, " \n"]) if words is None else words
    session = hf.session("s", model=MODEL, system=system, tools=TOOLS if rng.random() < 0.5 else None)
    found = World(hf, rng, session)
    with ExitStack() as blocks:
        _seat(found, seat, blocks)
        found.instructions += [] if words is None or seat == "alone" else [words]
        if rng.random() < 0.4 and seat != "alone":
            _brief(found)
        if rng.random() < 0.9:
            talk(found, rng.randint(1, 5) if turns is None else turns)
        if rng.random() < 0.3 and seat in ("session", "root"):
            summarise(found)
        if found.frame is not None:
            found.attached = attach(found, rng.randint(0, 7), "own")
        yield found


def _seat(found: World, seat: str, blocks: ExitStack) -> None:
    rng = found.rng
    session = None if seat == "alone" else "s"
    for level in range({"session": 0, "root": 1, "alone": 1, "child": 2, "grandchild": 3}[seat]):
        goal = f"goal-{level} {text(rng, rng.choice([3, 3, 200]))}"
        inputs = f"inputs-{level} {text(rng, 8)}" if rng.random() < 0.3 else None
        above = found.frame
        if above is None:
            found.frame = blocks.enter_context(found.hf.frame(goal, inputs=inputs, limits=WIDE, session=session))
        else:
            found.above += attach(found, rng.randint(0, 2), f"above{level}")
            above.append(f"said above, by level {level}")
            found.frame = blocks.enter_context(above.frame(goal, inputs=inputs, limits=WIDE))
        found.goals.append(goal)
        found.notes = [inputs] if inputs else []


def _brief(found: World) -> None:
    """What must always hold, or words of somebody who may not instruct."""
    words = f"brief-words {text(found.rng, 6)}"
    if found.rng.random() < 0.5:
        found.session.packs.set_brief(invariants=[words])
        found.instructions.append(words)
    else:
        untrusted(found.hf).session("s").packs.set_brief(working_context=words)
        found.notes.append(words)


def untrusted(hf: Holdfast) -> Holdfast:
    """A view of somebody whose words are data."""
    return Holdfast(replace(hf.env, trust="model"), owner=False)


def talk(found: World, turns: int) -> None:
    """Turns as they come: some from a list with everything in it, some with late and missing results, some pinned."""
    rng = found.rng
    if rng.random() < 0.5:
        found.append(conversation(rng, turns=turns, broken=False, huge=rng.random() < 0.3, pinned=True))
    else:
        for number in range(turns):
            torn_turn(found, number)
    if rng.random() < 0.15 and found.frame is None:
        found.session.import_messages(as_dicts(conversation(rng, turns=2, system=False)))
    if rng.random() < 0.05:
        image = {"type": "image", "url": "https://x.test/a.png", "detail": "low"}
        found.append(Message(role="user", content=[image]))


def torn_turn(found: World, number: int) -> None:
    """A question, calls of which some are answered late or never, and an answer."""
    rng = found.rng
    found.append(f"asked {number}: {text(rng)}", policy="pinned" if rng.random() < 0.1 else None)
    ids = [f"c{rng.randint(1, 3)}" for _ in range(rng.choice([1, 2, 4]))]
    made = tuple(ToolCallRequest(name=tool_name(rng), arguments='{"n": 1}', provider_id=id) for id in ids)
    calls = list(found.append(Message(role="assistant", tool_calls=made, pinned=rng.random() < 0.1)).tool_calls)
    rng.shuffle(calls)
    for call in calls[: rng.randint(0, len(calls))]:
        if rng.random() < 0.2:
            found.append(rng.choice([f"meanwhile {text(rng, 5)}", " \n"]))
        said = f"result of {number}: {text(rng, rng.choice([5, 5, 400]))}" if rng.random() < 0.95 else " \n"
        result = holdfast.ToolCallResult(tool_call_id=call.id, result=said, is_error=rng.random() < 0.1)
        found.append(Message(role="tool", tool_results=(result,), name=call.name if rng.random() < 0.2 else None))
    found.append({"role": "assistant", "content": f"answered {number}: {text(rng)}"})


def summarise(found: World) -> None:
    """A summary stands for what is older, and some of that can be found again; none does where it would be longer."""
    words = f"summary-words {text(found.rng, 10)}"
    with suppress(holdfast.errors.SummaryFailed):
        found.session.compact(keep=found.rng.randint(1, 4), summarizer=lambda *_, **__: words, store=True)


def attach(found: World, number: int, prefix: str) -> list[Attached]:
    """Evidence for the frame that is packed, of any priority and size. Some cannot be read, unless it is critical."""
    assert found.frame is not None
    rng, made = found.rng, []
    for nth in range(number):
        priority = rng.choice(PRIORITIES)
        broken = priority != "critical" and rng.random() < 0.1
        words = f"body {prefix}{nth}: {text(rng, rng.choice([4, 30, 30, 300]))}"
        given: dict[str, Any] = {"target": "nothing#there"} if broken else {"body": words}
        id = found.frame.attach("document", handle=f"{prefix}{nth}", priority=priority, **given)
        made.append(Attached(id, priority, words, broken))
    return made


def asks(found: World) -> dict[str, Any]:
    """How a pack may be asked for."""
    rng = found.rng
    known = [one.id for one in (*found.attached, *found.above)] + ["nobody's"]
    return {
        "include": rng.sample(known, rng.randint(0, min(3, len(known)))),
        "exclude": rng.sample(known, rng.choice([0, 0, 1])),
        "force_exclude": rng.random() < 0.2,
        "query": rng.choice([None, "flight to Seattle"]),
        "layout": rng.choice(["stable", "classic"]),
        "stickiness": rng.choice([0, None, 0.7]),
        "min_compaction": rng.choice(["none", "none", "none", *LEVELS]),
        "recall": rng.choice([None, 2]),
    }
