"""Clients that write to one file in turns, and one that remembers nothing: what is kept in memory must stay true."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Self

import holdfast
from holdfast import Holdfast, Message, Refused, ToolCallRequest, Unsupported
from holdfast.errors import BudgetTooSmall, SummaryFailed
from tests.packs.pack_trials import NO_MEMORY
from tests.sessions.generated import text


class Interleaved:
    """Two clients that write to one file in turns, and a third that remembers nothing to compare them with."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one, self.two = holdfast.open(str(path)), holdfast.open(str(path))
        self.fresh = holdfast.open(str(path), settings=NO_MEMORY)
        self.one.session("s", model="gpt-4o", system="Be terse.")
        self.threads = ["main"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self.one, self.two, self.fresh):
            client.close()

    def words(self) -> str:
        return text(self.rng, self.rng.choice([1, 3, 20, 20, 150, 800]))

    def step(self) -> str:
        """One of the clients does something; gives what."""
        rng = self.rng
        hf = rng.choice([self.one, self.one, self.two])
        chat = hf.as_user(rng.choice(["ann", "bob"])).session("s", thread=rng.choice(self.threads))
        names = [one.removeprefix("do_") for one in dir(self) if one.startswith("do_")]
        what = rng.choice([*["say"] * 8, *["call"] * 3, *names])
        try:
            getattr(self, f"do_{what}")(chat, chat.messages())
        except (Refused, Unsupported, SummaryFailed):
            pass
        return what

    def do_say(self, chat: Any, said: Any) -> None:
        roles = ["user", "assistant", "user", "assistant", "system", "developer"]
        for _ in range(self.rng.choice([1, 1, 3])):
            chat.append(
                {"role": self.rng.choice(roles), "content": self.words()},
                policy="pinned" if self.rng.random() < 0.05 else None,
            )

    def do_ask(self, chat: Any, said: Any) -> None:
        calls = tuple(ToolCallRequest(name="f", provider_id=f"c{nth}") for nth in range(self.rng.choice([1, 2])))
        chat.append(Message(role="assistant", tool_calls=calls))

    def do_answer(self, chat: Any, said: Any) -> None:
        for call in chat.details.open_calls()[:1]:
            chat.append_result(call, self.words())

    def do_call(self, chat: Any, said: Any) -> None:
        chat.packs.begin_model_call(chat.pack(self.rng.choice([250, 600])))

    def do_rewind(self, chat: Any, said: Any) -> None:
        chat.rewind(to=self.rng.choice(said[-6:]) if said else None)

    def do_pin(self, chat: Any, said: Any) -> None:
        (chat.pin if self.rng.random() < 0.6 else chat.unpin)(self.rng.choice(said or ["nobody"]))

    def do_compact(self, chat: Any, said: Any) -> None:
        chat.compact(keep=self.rng.randint(1, 8), summarizer=lambda *_, **__: self.words())

    def do_fork(self, chat: Any, said: Any) -> None:
        if said and len(self.threads) < 4:
            self.threads.append(chat.fork(self.rng.choice(said)).thread)

    def do_reset(self, chat: Any, said: Any) -> None:
        if self.rng.random() < 0.2:
            chat.reset()

    def do_erase(self, chat: Any, said: Any) -> None:
        if self.rng.random() < 0.4:
            self.one.journal.erase(self.rng.choice(["ann", "bob"]))

    def do_brief(self, chat: Any, said: Any) -> None:
        chat.packs.set_brief(invariants=[text(self.rng, 5)])

    def do_prompt(self, chat: Any, said: Any) -> None:
        self.two.session("s", system=text(self.rng, 5))

    def differences(self) -> list[str]:
        """Packs that are not what somebody without a memory makes of the same journal."""
        wrong = []
        for thread in self.threads:
            for budget in (250, 600, 1_500):
                how = {"stickiness": self.rng.choice([None, 0])}
                client = self.rng.choice([self.one, self.two])
                mine, theirs = (_shown(hf, thread, budget, how) for hf in (client, self.fresh))
                if mine != theirs:
                    wrong.append(f"{thread} at {budget}: {mine} is not {theirs}")
        return wrong


def _shown(hf: Holdfast, thread: str, budget: int, how: dict[str, Any]) -> tuple[Any, ...]:
    try:
        pack = hf.session("s", thread=thread).pack(budget, **how)
    except BudgetTooSmall as error:
        return (error.required,)
    return pack.digest[:8], pack.token_summary, pack.conversation.truncated_count, pack.cached_share


def interleaved(seed: int, path: Path, steps: int = 30) -> list[str]:
    """Whatever two clients do in turns, the memory of neither makes a pack that is no longer true."""
    done: list[str] = []
    with Interleaved(path, seed) as turns:
        for _ in range(steps):
            done.append(turns.step())
            if turns.rng.random() < 0.5 and (wrong := turns.differences()):
                return [f"{seed} after {done[-5:]}: {one}" for one in wrong]
    return []
