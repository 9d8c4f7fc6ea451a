"""Somebody at work in a journal, what can be seen of it, and the way back to any cursor."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, HoldfastError, Session
from holdfast.testing.clock import FrozenClock
from tests.scale import seeded

WORDS = ("amber", "birch", "cobalt", "dahlia", "elm", "fjord", "garnet", "hazel")
SCOPES = ("user/1", "global", "session/a")


def shorter(messages: Any, *, max_tokens: int) -> str:
    return " ".join(message.text.split(" ")[0] for message in messages) or "nothing"


def back(client: Holdfast, as_of: Any) -> Holdfast:
    """The client as it was."""
    env = client.env
    assert env.past is not None
    return Holdfast(env.past(env, as_of), owner=False)


def line(client: Holdfast, id: str, thread: str = "main") -> Session:
    return Session(client.env, id, thread)


def seen(client: Holdfast) -> dict[str, Any]:
    """Everything that somebody who looks can see, but for searches."""
    found: dict[str, Any] = {"sessions": sorted(client.sessions(), key=lambda one: one.id)}
    for info in found["sessions"]:
        for thread in line(client, info.id).details.threads:
            told = line(client, info.id, thread)
            found[f"{info.id}/{thread}"] = (told.messages(), told.compaction.summaries(), told.details.open_calls())
        found[info.id] = (told.details.system, told.title, told.details.status, told.usage)
    found["stacks"] = list(client.index.stacks())
    found["questions"] = list(client.questions())
    for scope in client.state.scopes():
        names = client.state(scope).list()
        found[scope] = {name: (client.state(scope).entry(name), client.state(scope).history(name)) for name in names}
    return found


class Walk:
    """Somebody at work in a journal, with another tenant beside, whose events lie between."""

    def __init__(self, client: Holdfast, clock: FrozenClock, name: str) -> None:
        self.hf, self.clock, self.random = client, clock, seeded(name)
        self.other = client.tenant("other")
        self.frames: list[str] = []
        self.lines = [("a", "main"), ("b", "main")]
        for id, _ in self.lines:
            client.session(id, system=f"You are {id}.")
        self.other.session("a")

    def everything_once(self) -> None:
        """One of each, so that no run is without it."""
        chat = line(self.hf, "a")
        for word in WORDS:
            kept = chat.append(word)
        chat.compact(keep=2)
        chat.append("no")
        chat.rewind(to=kept)
        self.fork()
        self.hf.state("user/1").write("p", "x")
        self.hf.state("user/1").delete("p")
        self.push()
        self.push()
        self.hf.index.pop_frame(self.frames.pop())
        line(self.hf, "b").reset()

    def words(self, most: int = 6) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def line(self) -> Session:
        return line(self.hf, *self.random.choice(self.lines))

    def step(self) -> None:
        kinds = (self.say, self.say, self.say, self.call, self.rewind, self.fork, self.compact, self.keep, self.forget)
        self.clock.advance(self.random.randint(0, 400))
        try:
            self.random.choice((*kinds, self.push, self.push, self.pop, self.ask, self.reset, self.elsewhere))()
        except HoldfastError:
            return  # Something that is not possible now. What was written is what counts.

    def say(self) -> None:
        text = self.words(60) if self.random.random() < 0.1 else self.words()
        self.line().append(text, policy="pinned" if self.random.random() < 0.2 else None)

    def call(self) -> None:
        said = self.line().append(
            {
                "role": "assistant",
                "content": self.words(),
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            }
        )
        if self.random.random() < 0.8:
            line(self.hf, *self.lines[0]).append_result(said.tool_calls[0], self.words(80))

    def rewind(self) -> None:
        told = self.line()
        messages = told.messages()
        if messages:
            told.rewind(to=self.random.choice(messages[-6:]))

    def fork(self) -> None:
        told = self.line()
        if len(self.lines) < 6 and len(told):
            made = told.fork(self.random.choice(told.messages()))
            self.lines.append((made.id, made.thread))

    def compact(self) -> None:
        self.line().compact(keep=self.random.randint(0, 3), whole=self.random.random() < 0.3)

    def reset(self) -> None:
        if self.random.random() < 0.3:
            self.line().reset()

    def keep(self) -> None:
        ttl = 0.5 if self.random.random() < 0.3 else None
        self.hf.state(self.random.choice(SCOPES)).write(self.random.choice("pqr"), self.words(), ttl=ttl)

    def forget(self) -> None:
        self.hf.state(self.random.choice(SCOPES)).delete(self.random.choice("pqr"))

    def push(self) -> None:
        parent = self.frames[-1] if self.frames and self.random.random() < 0.6 else None
        scope = None if parent else self.random.choice(("actor/main", "actor/cook"))
        self.frames.append(self.hf.index.push_frame(self.words(), scope=scope, parent=parent, tokens=None))
        self.hf.index.add_handle(self.frames[-1], "document", body=self.words(), priority="high")

    def pop(self) -> None:
        if self.frames:
            self.hf.index.pop_frame(self.frames.pop(), self.random.choice(("completed", "failed")), summary="done")

    def ask(self) -> None:
        if self.frames:
            self.hf.index.suspend_frame(self.frames.pop(), self.words())

    def elsewhere(self) -> None:
        line(self.other, "a").append(self.words())
        self.other.state("user/1").write("p", self.words())


def recorded(walk: Walk, steps: int, every: int) -> dict[int, dict[str, Any]]:
    """What was seen at cursors about `every` events apart."""
    found: dict[int, dict[str, Any]] = {}
    journal = walk.hf.env.journal
    for _ in range(steps):
        walk.step()
        # The clock may have moved on since the last event; looking back, time stands at that event.
        newest = next(iter(walk.hf.journal.events(backwards=True))).at
        if journal.position() - max(found, default=0) >= every and newest == walk.clock.now_ms():
            found[journal.position()] = seen(walk.hf)
    return found
