"""Where a window begins: always so that it fits, and at the same place for as long as it can."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import ContextPack, Holdfast, Message, Session, ToolCallRequest
from holdfast.core.packs.window import MIN_STRETCHES, dense_start, grid_start, sticky_start
from tests.packs.pack_rules import kept_tokens, size_problems, validity_problems
from tests.packs.worlds import World
from tests.scale import seeded, volume
from tests.sessions.generated import text

SIZES = st.lists(st.integers(1, 60), max_size=40)
MANY = settings(max_examples=volume(100, 10_000), deadline=None)
BUDGET = 700


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


def fits(tokens: list[int], start: int, room: int) -> bool:
    return 0 <= start <= len(tokens) and (sum(tokens[start:]) <= room or start == len(tokens))


# the three ways


@MANY
@given(SIZES, st.integers(-20, 600))
def test_a_dense_window_begins_as_early_as_it_can(tokens: list[int], room: int) -> None:
    start = dense_start(tokens, room)
    assert fits(tokens, start, room)
    assert start == 0 or sum(tokens[start - 1 :]) > room


@MANY
@given(SIZES, st.integers(-20, 600), st.integers(0, 400), st.integers(-1, 40), st.sampled_from([0.1, 0.4, 0.9]))
def test_a_sticky_window_stays_if_it_fits_and_else_leaves_a_part_of_its_share(
    tokens: list[int], room: int, more: int, before: int, stickiness: float
) -> None:
    before = min(before, len(tokens))
    share = max(room, 0) + more
    start = sticky_start(tokens, room, share, before, stickiness)
    assert fits(tokens, start, room)
    if before >= 0 and (fits(tokens, before, room)):
        assert start == before
    else:
        assert start > before
        assert sum(tokens[start:]) <= max(room - int(share * stickiness), 0)


@MANY
@given(SIZES, st.integers(-20, 600), st.integers(0, 2**32))
def test_a_grid_begins_where_it_fits_and_gives_up_a_stretch_at_most(tokens: list[int], room: int, seed: int) -> None:
    places = grown(random.Random(seed), len(tokens))
    start = grid_start(tokens, places, room)
    densest = dense_start(tokens, room)
    assert fits(tokens, start, room)
    assert start >= densest
    if start > densest:
        span = places[-1] - places[densest] + 1
        assert places[start - 1] - places[densest] < span / MIN_STRETCHES


def test_a_grid_is_found_again_by_who_knows_nothing_of_the_last_one() -> None:
    """Whoever makes the next pack finds the same start most of the time: it moves by stretches."""
    rng = seeded("stretches")
    for _ in range(volume(5, 500)):
        tokens = [rng.randint(5, 60) for _ in range(150)]
        places, room = grown(rng, 150), rng.randint(400, 1_000)
        starts = [grid_start(tokens[:end], places[:end], room) for end in range(1, 151)]
        dense = [dense_start(tokens[:end], room) for end in range(1, 151)]
        assert moves(starts) < 0.6 * moves(dense)


def moves(starts: list[int]) -> int:
    return sum(one != other for one, other in pairwise(starts))


def grown(rng: random.Random, number: int) -> list[int]:
    """Versions of a stream: they grow, with gaps."""
    at = rng.randrange(100)
    return [at := at + rng.choice([1, 1, 2, 5]) for _ in range(number)]


# in packs


def started(pack: ContextPack) -> str:
    """The first message of the window."""
    return next(message.id for message in pack.messages if message.id)


def talking(chat: Session, rng: random.Random) -> Iterator[None]:
    """A conversation that goes on, round by round."""
    for nth in range(volume(60, 400)):
        chat.append(f"asked {nth} {text(rng)}")
        if rng.random() < 0.3:
            calls = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),))).tool_calls
            chat.append_result(calls[0], f"found {nth} {text(rng, 60)}")
        yield
        chat.append({"role": "assistant", "content": f"said {nth} {text(rng)}"})


def test_a_journaled_window_stays_until_what_follows_no_longer_fits(hf: Holdfast) -> None:
    rng = seeded("sticky")
    chat = hf.session("s", model="gpt-4o", system="Be terse.")
    found = World(hf, rng, chat)
    last: ContextPack | None = None
    moved, shares = 0, []
    for _ in talking(chat, rng):
        pack = chat.pack(BUDGET)
        assert [*size_problems(found, pack), *validity_problems(pack)] == []
        if last is not None and started(pack) != started(last):
            moved += 1
        elif last is not None:
            shares.append(kept_tokens(found, last, pack) / last.tokens)
            assert round(pack.cached_share * pack.tokens) == kept_tokens(found, last, pack)
        chat.packs.begin_model_call(pack)
        last = pack
    assert 2 <= moved <= volume(60, 400) // 3
    assert sum(shares) / len(shares) > 0.85


def test_without_a_journaled_pack_the_window_moves_by_stretches(hf: Holdfast) -> None:
    rng = seeded("grid")
    chat = hf.session("s", model="gpt-4o")
    grid, dense = [], []
    for _ in talking(chat, rng):
        grid.append(started(chat.pack(BUDGET)))
        dense.append(started(chat.pack(BUDGET, stickiness=0)))
    assert len({*grid}) < 0.6 * len({*dense})


def test_packs_that_are_only_looked_at_move_nothing(hf: Holdfast) -> None:
    rng = seeded("looking")
    chat, quiet = hf.session("s", model="gpt-4o"), hf.session("t", model="gpt-4o")
    for _ in zip(talking(chat, random.Random(1)), talking(quiet, random.Random(1)), strict=True):
        for budget in (BUDGET, 300, 2_000):
            chat.pack(budget, role=rng.choice(["main", "judge"]), stickiness=rng.choice([0, None]))
        one, other = chat.pack(BUDGET), quiet.pack(BUDGET)
        assert [message.text for message in one.messages] == [message.text for message in other.messages]
        chat.packs.begin_model_call(one)
        quiet.packs.begin_model_call(other)


def test_each_role_layout_and_budget_has_a_window_of_its_own(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    talk = talking(chat, random.Random(3))
    for _ in range(12):
        next(talk)
    keys: list[dict[str, Any]] = [
        {"role": role, "layout": layout} for role in ("main", "judge") for layout in ("stable", "classic")
    ]
    for key in keys:
        next(talk)
        chat.packs.begin_model_call(chat.pack(BUDGET, **key))
    for key in keys:
        assert chat.pack(BUDGET, **key).cached_share > 0
        assert chat.pack(BUDGET + 1, **key).cached_share == 0
    for _ in range(20):
        next(talk)
        chat.packs.begin_model_call(chat.pack(BUDGET, **keys[0]))
    assert chat.pack(BUDGET, **keys[0]).cached_share > 0
    assert chat.pack(BUDGET, **keys[1]).cached_share == 0, "its last pack lies too far back to be looked for"


def test_a_window_whose_beginning_is_gone_begins_anew(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    found = World(hf, random.Random(5), chat)
    for _ in talking(chat, random.Random(5)):
        pack = chat.pack(BUDGET)
    chat.packs.begin_model_call(pack)
    first = next(message for message in pack.messages if message.id)
    chat.compact(keep=4, summarizer=lambda *_, **__: "what came before")
    after = chat.pack(BUDGET)
    assert first.id not in {message.id for message in after.messages}
    assert [*size_problems(found, after), *validity_problems(after)] == []
    chat.packs.begin_model_call(after)
    chat.rewind(to=chat.messages()[-3])
    assert [*size_problems(found, chat.pack(BUDGET))] == []


def test_the_densest_window_takes_the_round_at_its_edge_with_its_outputs_shortened(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    for nth in range(6):
        chat.append(f"asked {nth}")
        call = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),))).tool_calls[0]
        chat.append_result(call, f"found {nth} " + "some words " * 120)
    dense = chat.pack(BUDGET, stickiness=0)
    assert dense.tokens > 0.95 * BUDGET
    assert dense.shortened == 1
    edge = next(segment for segment in dense.segments if segment.shortened)
    assert (edge.id, edge.origins[0].cut is not None) == (dense.segments[dense.segments.index(edge)].id, True)
    assert f"characters left out: m{edge.messages[1].version}" in str(edge.messages[1].tool_results[0].result)
    assert validity_problems(dense) == []


def test_older_rounds_take_the_room_that_a_long_text_leaves_when_it_is_abbreviated(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append([f"message {nth} " + "with some words " * 8 for nth in range(60)])
    chat.append(["We talked about the usual things over lunch. " * 500, "the newest"])
    pack = chat.pack(3_000, stickiness=0)
    assert pack.shortened == 1
    assert pack.tokens > 0.95 * 3_000
