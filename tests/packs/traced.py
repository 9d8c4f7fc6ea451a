"""A conversation in which facts are said, cut, summarised, pinned and taken back, and what each call was shown."""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple

from holdfast import Holdfast, HoldfastError, Session
from holdfast.errors import BudgetTooSmall
from holdfast.types import Trace
from tests.scale import volume

WORDS = ("amber", "birch", "cobalt", "dahlia", "elm", "fjord", "garnet", "hazel", "iris", "juniper")

MOST_FACTS = volume(8, 16)
"""Facts of one walk that are traced through each line."""


def by_fours(text: str) -> int:
    """A tokenizer that everybody can check."""
    return len(text) // 4 + 1


def talk(chat: Session, turns: int, budget: int = 400, *, size: int = 20) -> list[str]:
    """Turns with a call each; gives the calls."""
    calls = []
    for turn in range(turns):
        calls.append(chat.packs.begin_model_call(chat.pack(budget)))
        chat.append({"role": "assistant", "content": f"Reply {turn} {'bla ' * size}"})
        chat.append(f"Question {turn} {'hm ' * size}")
    return calls


class Shown(NamedTuple):
    """A call of a line, and all that a provider was sent for it."""

    line: tuple[str, str]
    call: str
    text: str


class Facts:
    """Somebody who talks, with facts that are nowhere else."""

    def __init__(self, hf: Holdfast, random: Random) -> None:
        self.hf, self.random = hf, random
        self.lines = [hf.session("a", system="You are terse. The password is fact-0.")]
        self.shown: list[Shown] = []
        self.facts = ["fact-0"]
        self.how: dict[tuple[str, str], dict[str, Any]] = {}

    def filler(self, most: int) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def new(self) -> str:
        """A fact within other words."""
        self.facts.append(f"fact-{len(self.facts)}x")
        most = self.random.choice((4, 4, 12, 250))
        return f"{self.filler(most)} {self.facts[-1]} {self.filler(most)}"

    def line(self) -> Session:
        return self.random.choice(self.lines)

    def step(self) -> None:
        kinds = (self.say, self.say, self.say, self.use_a_tool, self.use_a_tool, self.call, self.call, self.call)
        rare = (self.compact, self.pin, self.rewind, self.fork, self.reset)
        chosen = self.random.choice(rare) if self.random.random() < 0.15 else self.random.choice(kinds)
        try:
            chosen()
        except BudgetTooSmall:
            self.line().append("short")
        except HoldfastError:
            return  # Not possible now.

    def say(self) -> None:
        role = self.random.choice(("user", "assistant"))
        text = self.new() if self.random.random() < 0.4 else self.filler(20)
        self.line().append({"role": role, "content": text})

    def use_a_tool(self) -> None:
        chat = self.line()
        ids = [f"c{number}" for number in range(self.random.randint(1, 2))]
        calls = [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in ids]
        asked = chat.append({"role": "assistant", "content": None, "tool_calls": calls})
        for call in asked.tool_calls:
            chat.append_result(call, self.new() if self.random.random() < 0.5 else self.filler(200))

    def call(self) -> None:
        """A pack is journaled, and what a provider is sent is noted."""
        chat = self.line()
        how: dict[str, Any] = {
            "budget": self.random.choice((300, 700, 2_000)),
            "role": self.random.choice(("main", "main", "planner")),
            "layout": self.random.choice(("stable", "classic")),
            "min_compaction": self.random.choice(("none", "none", "light", "aggressive")),
        }
        pack = chat.pack(**how)
        call = chat.packs.begin_model_call(pack)
        place = (chat.id, chat.thread)
        self.shown.append(Shown(place, call, json.dumps(pack.to_openai())))
        self.how[place] = {**how, "min_compaction": "none"}

    def compact(self) -> None:
        repeats = self.random.random() < 0.5

        def short(messages: Any, *, max_tokens: int) -> str:
            said = " ".join(json.dumps([message.text, str(message.tool_results)]) for message in messages)
            kept = [fact for fact in self.facts if repeats and fact in said]
            return f"They spoke. {' '.join(kept[:3])}"

        self.line().compact(keep=self.random.randint(1, 4), summarizer=short)

    def pin(self) -> None:
        chat = self.line()
        messages = chat.messages(30)
        if messages:
            chat.pin(self.random.choice(messages))

    def rewind(self) -> None:
        chat = self.line()
        messages = chat.messages(6)
        if messages:
            chat.rewind(to=self.random.choice(messages))

    def fork(self) -> None:
        chat = self.line()
        if len(self.lines) < 3 and len(chat):
            self.lines.append(chat.fork(self.random.choice(chat.messages())))

    def reset(self) -> None:
        if self.random.random() < 0.2:
            self.line().reset()

    # what must hold

    def check(self) -> set[tuple[str, str | None]]:
        """Every trace says of every pack what a provider was sent; gives which cases there were."""
        cases: set[tuple[str, str | None]] = set()
        for chat in self.lines:
            for fact in self.random.sample(self.facts, min(len(self.facts), MOST_FACTS)):
                trace = chat.why(fact)
                cases.update((one.state, one.reason) for one in trace.appearances)
                self._check_packs(chat, fact, trace)
                self._check_now(chat, fact, trace)
        return cases

    def _check_packs(self, chat: Session, fact: str, trace: Trace) -> None:
        told = {one.call: one for one in trace.appearances}
        for one in self.shown:
            if one.line == (chat.id, chat.thread):
                seen = one.call in told and told[one.call].seen
                assert seen == (fact in one.text), (fact, told.get(one.call), trace.found)

    def _check_now(self, chat: Session, fact: str, trace: Trace) -> None:
        how = self.how.get((chat.id, chat.thread))
        if how is not None:
            try:
                shows = fact in json.dumps(chat.pack(**how).to_openai())
            except BudgetTooSmall:
                shows = False
            assert trace.fix.startswith("Nothing:") == shows, (fact, trace)
