"""Trials of the packer: each makes a world from a seed, packs it in many ways, and gives everything that went wrong.

The property tests want them empty. The planted bugs want them not to be.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import holdfast
from holdfast import ContextPack, Holdfast, Settings
from tests.packs.pack_rules import kept_tokens, name, problems, size_problems
from tests.packs.worlds import LEVELS, PLENTY, World, asks, attach, summarise, talk, world
from tests.sessions.generated import text

NO_MEMORY = Settings(cached_windows=0, cached_streams=0, min_pack_tokens=1)


def packs(seed: int) -> list[str]:
    """Packs of one world, from the least budget on, each as it may be asked for."""
    rng = random.Random(seed)
    wrong: list[str] = []
    with holdfast.open("memory:") as hf, world(hf, rng) as found:
        for more in (0, 1, rng.randint(2, 50), rng.randint(50, 400), rng.randint(400, 2_000), PLENTY):
            asked = asks(found) | _some_messages(found)
            budget = found.required(1, **asked) + more
            pack = found.pack(budget, **asked)
            wrong += [f"{seed} at {budget}: {one}" for one in problems(found, pack, **asked)]
            floor = asked.get("min_compaction", "none")
            if LEVELS.index(pack.level) < LEVELS.index(floor):
                # A floor is not reported where it changes nothing.
                plain = found.pack(budget, **asked | {"min_compaction": pack.level})
                if (plain.level, plain.digest) != (pack.level, pack.digest):
                    wrong.append(f"{seed} at {budget}: level {pack.level}, below {floor}, is another pack")
            if rng.random() < 0.3:
                found.begin(pack)
    return wrong


def _some_messages(found: World) -> dict[str, Any]:
    """Now and then a limit of the number of messages, which is not below what must be shown."""
    if found.rng.random() < 0.8:
        return {}
    return {"max_messages": (found.required(PLENTY, max_messages=1) or 1) + found.rng.randint(0, 6)}


def budgets(seed: int) -> list[str]:
    """Budgets around the least one and up from it: the least is said exactly, and nothing that must stay is lost."""
    rng = random.Random(seed)
    wrong: list[str] = []
    with holdfast.open("memory:") as hf, world(hf, rng) as found:
        asked = asks(found) | {"min_compaction": rng.choice(["none", "none", "light", "moderate", "aggressive"])}
        least = found.required(1, **asked)
        for budget in {1, least // 2, least - 2, least - 1} - {0}:
            if (said := found.required(budget, **asked)) != least:
                wrong.append(f"{seed} at {budget}: says {said} where {least} are needed")
        had: set[str] = set()
        budget = least
        for step in range(22):
            shown = stays(found, found.pack(budget, **asked), **asked)
            wrong += [f"{seed} at {budget}: lost {one}" for one in had - shown]
            had |= shown
            budget += 1 if step < 10 else rng.choice([1, 10, 60, 400])
    return wrong


def stays(found: World, pack: ContextPack, **asked: Any) -> set[str]:
    """What is in a pack and may not be lost with a larger budget."""
    pinned = {name(found, message) for message in pack.messages if message.pinned}
    included = asked.get("include", ())
    return pinned | {one.handle_id for one in pack.evidence if one.priority == "critical" or one.handle_id in included}


def again(seed: int, path: Path) -> list[str]:
    """The same pack made again: at once, without what is kept in memory, and by somebody who has nothing in memory."""
    rng = random.Random(seed)
    wrong: list[str] = []
    with holdfast.open(str(path)) as hf, world(hf, rng) as found:
        for _ in range(4):
            asked = asks(found)
            budget = found.required(1, **asked) + rng.choice([0, 30, 200, 1_000])
            pack = found.pack(budget, **asked)
            digests = [pack.digest, found.pack(budget, **asked).digest]
            found.forget()
            digests.append(found.pack(budget, **asked).digest)
            with holdfast.open(str(path), settings=NO_MEMORY) as other:
                digests.append(_elsewhere(found, other, budget, asked).digest)
            if len({*digests}) > 1:
                wrong.append(f"{seed} at {budget}: {[digest[:6] for digest in digests]}")
            found.begin(pack)
            talk(found, 1)
    return wrong


def _elsewhere(found: World, other: Holdfast, budget: int, asked: dict[str, Any]) -> ContextPack:
    """The same pack by another client of the same file."""
    if found.frame is None:
        return other.session("s").pack(budget, **asked)
    names = {"include": "include_handles", "exclude": "exclude_handles"}
    named = {names.get(key, key): value for key, value in asked.items()}
    return other.index.assemble_context_pack(frame=found.frame.id, budget_tokens=budget, **named)


def kept(seed: int) -> list[str]:
    """Packs of a line that goes on: they fit, and no more is said to be cached than the last request began with."""
    rng = random.Random(seed)
    wrong: list[str] = []
    with holdfast.open("memory:") as hf, world(hf, rng) as found:
        budget = found.required(1) + rng.choice([100, 400, 1_500])
        last: dict[str, ContextPack] = {}
        for step in range(12):
            layout = rng.choice(["stable", "classic"])
            if not found.required(budget, layout=layout):
                pack = found.pack(budget, layout=layout)
                claimed, true = round(pack.cached_share * pack.tokens), kept_tokens(found, last.get(layout), pack)
                if claimed > true:
                    wrong.append(f"{seed} step {step}: says {claimed} tokens where {true} are the same")
                wrong += [f"{seed} step {step}: size: {one}" for one in size_problems(found, pack)]
                if rng.random() < 0.6:
                    found.begin(pack)
                    last[layout] = pack
            _goes_on(found, step)
    return wrong


def _goes_on(found: World, step: int) -> None:
    """Something that changes the next pack."""
    rng, said = found.rng, found.messages()
    kind = rng.choice(["said", "said", "talk", "pin", "unpin", "rewind", "summary", "brief", "evidence", "erase"])
    session = found.session
    if kind == "talk":
        talk(found, 1)
    elif kind == "evidence" and found.frame is not None:
        attach(found, 1, f"late{step}")
    elif kind == "brief":
        session.packs.set_brief(invariants=[text(rng, 3)])
    elif kind == "erase":
        hf = found.hf.as_user("bob")
        hf.session("s").append("of Bob")
        hf.journal.erase("bob")
    elif found.frame is not None or len(said) < 3 or kind == "said":
        found.append(text(rng), policy="pinned" if rng.random() < 0.2 else None)
    elif kind in ("pin", "unpin"):
        getattr(session, kind)(rng.choice(said))
    elif kind == "rewind":
        session.rewind(to=rng.choice(said[-3:]))
    else:
        summarise(found)
