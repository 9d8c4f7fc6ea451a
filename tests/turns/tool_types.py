"""Types that a tool's parameters may have, made at random, with JSON that fits them and JSON that hardly does."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import itertools
import random
import types
from collections.abc import Callable
from typing import Any, Literal, NotRequired, Required, TypedDict

import msgspec
import pydantic

Fit = Callable[[random.Random], Any]
_numbers = itertools.count()
NAMES = ("a", "b", "c", "x-y")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 7


def scalar(rng: random.Random) -> tuple[Any, Fit]:
    """A type without parts, and what makes values of it."""
    return rng.choice(
        [
            (str, lambda rng: rng.choice(["", "word", "5", "null", "née"])),
            (int, lambda rng: rng.randrange(-9, 9)),
            (float, lambda rng: rng.choice([0.5, -2.25, 3])),
            (bool, lambda rng: rng.random() < 0.5),
            (Literal["on", "off"], lambda rng: rng.choice(["on", "off"])),
            (Literal["one", 2], lambda rng: rng.choice(["one", 2])),
            (Colour, lambda rng: rng.choice(["red", "blue"])),
            (Size, lambda rng: rng.choice([1, 7])),
            (Any, lambda rng: rng.choice([None, 1, "x", {"any": [1]}])),
        ]
    )


def compound(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    """A type, perhaps made of others."""
    if depth == 0 or rng.random() < 0.3:
        return scalar(rng)
    return rng.choice([_listed, _set, _pair, _mapping, _optional, _record, _record, _record])(rng, depth - 1)


def _listed(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    kind, fit = compound(rng, depth)
    return rng.choice([list[kind], tuple[kind, ...]]), lambda rng: [fit(rng) for _ in range(rng.randrange(3))]


def _set(rng: random.Random, _depth: int) -> tuple[Any, Fit]:
    return set[int], lambda rng: rng.sample(range(9), rng.randrange(4))


def _pair(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    (one, fit_one), (two, fit_two) = compound(rng, depth), compound(rng, depth)
    return tuple[one, two], lambda rng: [fit_one(rng), fit_two(rng)]


def _mapping(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    kind, fit = compound(rng, depth)
    keys, names = rng.choice([(str, ["k", "l"]), (int, ["1", "-20"]), (Literal["on", "off"], ["on", "off"])])
    return dict[keys, kind], lambda rng: {name: fit(rng) for name in rng.sample(names, rng.randrange(3))}


def _optional(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    kind, fit = compound(rng, depth)
    return kind | None, lambda rng: None if rng.random() < 0.4 else fit(rng)


def _record(rng: random.Random, depth: int) -> tuple[Any, Fit]:
    """A dataclass, a TypedDict, a Struct or a Pydantic model with up to three fields, some with defaults."""
    make = rng.choice([_dataclass, _typed_dict, _struct, _model])
    fields = []
    for name in ("a", "b", "c")[: rng.randrange(1, 4)]:
        # Pydantic's models cannot hold msgspec's.
        kind, fit = compound(rng, 0 if make is _model else depth)
        fields.append((name, kind, fit, rng.random() < 0.6))
    fields.sort(key=lambda field: not field[3])
    made = make(f"Record{next(_numbers)}", fields)

    def fit_all(rng: random.Random) -> dict[str, Any]:
        return {name: fit(rng) for name, _, fit, needed in fields if needed or rng.random() < 0.5}

    return made, fit_all


def _dataclass(name: str, fields: list[Any]) -> Any:
    listed = [
        (one, kind) if needed else (one, kind, dataclasses.field(default=None)) for one, kind, _, needed in fields
    ]
    return dataclasses.make_dataclass(name, listed)


def _typed_dict(name: str, fields: list[Any]) -> Any:
    hints = {one: Required[kind] if needed else NotRequired[kind] for one, kind, _, needed in fields}
    return TypedDict(name, hints)


def _struct(name: str, fields: list[Any]) -> Any:
    listed = [(one, kind) if needed else (one, kind, None) for one, kind, _, needed in fields]
    return msgspec.defstruct(name, listed)


def _model(name: str, fields: list[Any]) -> Any:
    listed = {one: (kind, ...) if needed else (kind, None) for one, kind, _, needed in fields}
    return pydantic.create_model(name, **listed)


def function(rng: random.Random, depth: int = 3) -> tuple[Any, Fit]:
    """A function with up to four typed parameters, and what makes arguments for it."""
    count = rng.randrange(1, 5)
    chosen = [(f"p{at}", *compound(rng, depth), rng.random() < 0.6) for at in range(count)]

    def made(**given: Any) -> Any:
        return given

    copied = types.FunctionType(made.__code__, made.__globals__, "made")
    copied.__annotations__ = {name: kind for name, kind, _, _ in chosen}
    copied.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if needed else None,
                annotation=kind,
            )
            for name, kind, _, needed in chosen
        ]
    )

    def arguments(rng: random.Random) -> dict[str, Any]:
        return {name: fit(rng) for name, _, fit, needed in chosen if needed or rng.random() < 0.5}

    return copied, arguments


def damaged(rng: random.Random, given: Any) -> Any:
    """The same data with one thing in it changed, left out, added or put elsewhere."""
    found = copy.deepcopy(given)
    holders = [found] if isinstance(found, dict | list) else []
    for holder in holders:
        holders += [
            one for one in (holder.values() if isinstance(holder, dict) else holder) if isinstance(one, dict | list)
        ]
    holder = rng.choice(holders)
    odd = rng.choice([None, 1, -0.5, "word", "5", "true", [], [1, 1], {}, {"a": 1}, True, {"zz": 0}, "red", 2**70])
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), odd)
    elif holder and rng.random() < 0.7:
        name = rng.choice(list(holder))
        if rng.random() < 0.3:
            del holder[name]
        else:
            holder[name] = odd
    else:
        holder[rng.choice(NAMES)] = odd
    return found
