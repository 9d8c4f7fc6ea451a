"""A conversation that mostly grows, packed after each step: what earlier packs left must never change a pack.

Each pack is compared with one that takes nothing from earlier packs, with what is journaled of it, with what every
provider would be sent, and with the same pack made again from its manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast import CallModel, CallTool, ContextPack, Message, Refused, ToolCallRequest, ToolCallResult, Unsupported
from holdfast.client.pack import make_pack_request
from holdfast.errors import BudgetTooSmall, SummaryFailed
from holdfast.flow.packs import manifest, pack, visibility
from holdfast.flow.packs.visibility import Visibility
from holdfast.ports import Env
from tests.packs.interleaved import Interleaved

WIDE, NARROW = 40_000, 900
AFTERWARDS = ("metadata", "cached_tokens", "facts", "fresh")
"""What another pack says of itself once this one is journaled."""
IMAGE = {"type": "image", "data": b"\x89PNG\r\n\x1a\n", "media_type": "image/png"}
MARKED = {"type": "text", "text": "marked", "anthropic": {"cache_control": {"type": "ephemeral"}}}


def requests(found: ContextPack) -> dict[str, Any]:
    """What providers would be sent."""
    return {
        "openai": found.to_openai(),
        "responses": found.to_responses(),
        "anthropic": found.to_anthropic(),
        "anthropic without marks": found.to_anthropic(cache=False),
    }


def whole(env: Env, found: ContextPack) -> dict[str, Any]:
    """A pack, what is journaled of it, and what providers would be sent."""
    packed = found._packed
    plain: dict[str, Any] = msgspec.to_builtins(packed)
    del plain["follows"], plain["metadata"]["created_at"]
    facts = manifest._pack_facts(env, packed, found.digest, "pack", "call", None)
    return plain | {"facts": facts, "digest": found.digest, "text": repr(found)} | requests(found)


def anew(env: Env, seen: Visibility, budget: int, how: dict[str, Any]) -> ContextPack:
    """The same pack, made without anything that earlier packs left, and rendered without it."""
    quiet = replace(env, recent=None, hints=None)
    made = replace(pack.build_pack(quiet, seen, make_pack_request("pack", budget, how)))
    assert made.hints is None, "they are no field"
    return ContextPack(quiet, made)


def compare(
    env: Env, seen: Visibility, found: ContextPack, budget: int, how: dict[str, Any], *, journaled: bool = False
) -> list[str]:
    """The parts of a pack that are not what they are without earlier packs. What is journaled has itself before it."""
    mine, theirs = whole(env, found), whole(env, anew(env, seen, budget, how))
    for name in AFTERWARDS if journaled else ():
        del mine[name], theirs[name]
    return [
        f"{name}: {mine[name]!r:.2000} is not {theirs[name]!r:.2000}" for name in mine if mine[name] != theirs[name]
    ]


class Growing(Interleaved):
    """Two clients that write to one conversation, and pack it again and again."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, seed)
        self.wrong: list[str] = []
        self.budget = self.rng.choice([WIDE, WIDE, NARROW])
        self.how: dict[str, Any] = {"layout": self.rng.choice(["stable", "stable", "classic"])}

    def words(self) -> str:
        return super().words() if self.rng.random() < 0.3 else f"said {self.rng.randrange(1_000)}"

    def step(self) -> str:
        """Mostly more is said in the first thread; now and then anything else happens."""
        rng, done = self.rng, "say"
        if rng.random() < 0.3:
            done = super().step()
        else:
            done = rng.choice(["say", "say", "tools", "parts", "turn"])
            chat = rng.choice([self.one, self.one, self.two]).as_user(rng.choice(["ann", "bob"])).session("s")
            getattr(self, f"do_{done}")(chat, ())
        if rng.random() < 0.8:
            self.look()
        return done

    def look(self) -> None:
        """Pack one thread; now and then journal the pack, and make it again."""
        hf = self.rng.choice([self.one, self.one, self.two])
        thread = self.rng.choice(["main", "main", *self.threads])
        chat = hf.session("s", thread=thread)
        env, seen = chat._env, visibility.thread_visibility(chat._thread_stream)
        try:
            found = chat.pack(self.budget, **self.how)
        except BudgetTooSmall:
            return
        self.wrong += compare(env, seen, found, self.budget, self.how)
        if self.rng.random() < 0.3:
            before = requests(found)
            again = chat.pack_at(chat.packs.begin_model_call(found))
            if again._packed.metadata.erased or (again.digest, requests(again)) == (found.digest, before):
                return
            self.wrong.append("a pack that is made again is another one")

    def do_tools(self, chat: Any, said: Any) -> None:
        ids = [self.rng.choice(["c0", "c1", "not a valid id", f"c{self.rng.randrange(10**6)}"]) for _ in range(2)]
        calls = tuple(ToolCallRequest(name="f", provider_id=id) for id in ids[: self.rng.choice([1, 2])])
        results = tuple(ToolCallResult(provider_id=call.provider_id, result=self.words()) for call in calls)
        chat.append([Message(role="assistant", tool_calls=calls), Message(role="tool", tool_results=results)])

    def do_parts(self, chat: Any, said: Any) -> None:
        part = self.rng.choice([IMAGE, MARKED, {"type": "text", "text": self.words()}])
        chat.append(Message(role="user", content=[part]))

    def do_turn(self, chat: Any, said: Any) -> None:
        with chat.turn(self.words(), budget=self.budget) as turn:
            for number in range(self.rng.randint(1, 4)):
                step = next(iter(turn.steps(at_once=1)), None)
                if isinstance(step, CallTool):
                    step.done(self.words())
                elif isinstance(step, CallModel) and self.budget == NARROW:  # A window moves once it is journaled.
                    step.done("Done.")
                elif isinstance(step, CallModel):
                    seen = visibility.frame_visibility(chat._env, turn.id, turn=turn.engine.place.started)
                    self.wrong += compare(chat._env, seen, step.pack, self.budget, {}, journaled=True)
                    wish = {"id": f"t{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    step.done({"role": "assistant", "content": None, "tool_calls": [wish]})


def growing(seed: int, path: Path, steps: int = 40) -> list[str]:
    """Whatever happens to a conversation, what packs leave behind never changes the next one."""
    done: list[str] = []
    with Growing(path, seed) as found:
        for _ in range(steps):
            try:
                done.append(found.step())
            except (Refused, Unsupported, SummaryFailed):
                continue
            if found.wrong:
                return [f"{seed} after {done[-5:]}: {one}" for one in found.wrong]
    return []
