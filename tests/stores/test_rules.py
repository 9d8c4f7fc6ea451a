"""The rules of entries that need no store: keys, options, numbers, reducers, and walks over edges."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import entries as rules
from holdfast.core.entries import MISSING, EntryOptions
from holdfast.core.numbers import check_number
from holdfast.errors import InvalidValue
from holdfast.records.entries import Edge, EdgeQuery
from holdfast.records.scope import Scope
from holdfast.testing.store_contract.hostile_keys import ACCEPTED_KEYS, HOSTILE_KEYS, HOSTILE_KEYS_BY_KIND, REFUSED_KEYS
from tests.scale import seeded, volume

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=5)


def test_there_are_108_hostile_keys_and_each_has_one_verdict() -> None:
    assert len(HOSTILE_KEYS) == len(set(HOSTILE_KEYS)) == 108
    assert set(ACCEPTED_KEYS) | REFUSED_KEYS == set(HOSTILE_KEYS)
    assert len(HOSTILE_KEYS_BY_KIND) >= 18
    for key in HOSTILE_KEYS:
        if key in REFUSED_KEYS:
            with pytest.raises(InvalidValue):
                rules.check_entry_key(key)
        else:
            assert rules.check_entry_key(key) == key


def test_a_key_is_counted_in_characters_and_in_bytes() -> None:
    for key in ("k" * 512, "é" * 512, "世" * 341, "🙂" * 256):
        assert rules.check_entry_key(key) == key
    for key in ("k" * 513, "世" * 342, "🙂" * 257, None, 5, b"k", ["k"]):
        with pytest.raises(InvalidValue, match="key"):
            rules.check_entry_key(key)


@pytest.mark.parametrize(
    "check",
    [
        lambda value: check_number("n", value, whole=False),
        lambda value: check_number("n", value, least=1, most=rules.MAX_PAGE),
        rules.check_expected,
        lambda value: rules.check_choice("reducer", value),
        lambda value: rules.check_choice("direction", value),
        rules.check_kinds,
        rules.check_prefix,
        lambda value: rules.check_options(EntryOptions(ttl=value), Scope.GLOBAL),
        lambda value: rules.check_options(EntryOptions(salience=value), Scope.GLOBAL),
        lambda value: rules.check_options(EntryOptions(tier=value), Scope.GLOBAL),
    ],
)
def test_whatever_is_given_is_taken_or_refused_and_nothing_else(check: Any) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    odd: list[Any] = [Odd(), object(), 10**5_000, -(10**5_000), 2**1_024, 1e308, float("nan"), float("-inf"), b"", ""]
    odd += [[], {}, [None], [[]], (), "\ud800", "\0", True, 1j, float, lambda: None, range(10**9)]
    for value in odd:
        try:
            check(value)
        except InvalidValue as refused:
            assert len(str(refused)) < 400  # noqa: PT017
    with pytest.raises(InvalidValue):
        check(Odd())


def test_a_reducer_or_direction_must_be_named() -> None:
    for name in ("reducer", "direction"):
        with pytest.raises(InvalidValue, match="one of"):
            rules.check_choice(name, None)


@given(st.lists(JSON, max_size=6))
@settings(max_examples=volume(30, 2_000), deadline=None)
def test_appending_one_by_one_makes_the_list(items: list[Any]) -> None:
    held: Any = MISSING
    for item in items:
        before = copy.deepcopy(held) if held is not MISSING else held
        after = rules.apply_reducer("append", "k", held, item)
        assert held is MISSING or held == before
        held = after
    assert held == items or (held is MISSING and not items)


@given(OBJECTS, OBJECTS)
@settings(max_examples=volume(60, 3_000), deadline=None)
def test_merging_goes_into_objects_and_takes_the_new_elsewhere(known: dict[str, Any], given: dict[str, Any]) -> None:
    before = copy.deepcopy((known, given))
    merged = rules.apply_reducer("merge", "k", known, given)
    assert (known, given) == before
    assert merged.keys() == known.keys() | given.keys()
    for name, value in merged.items():
        old, new = known.get(name), given.get(name)
        if name not in given:
            assert value == old
        elif isinstance(old, dict) and isinstance(new, dict):
            assert value == rules.apply_reducer("merge", "k", old, new)
        else:
            assert value == new
    assert rules.apply_reducer("merge", "k", merged, given) == merged
    assert rules.apply_reducer("merge", "k", MISSING, given) == given


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1))
@settings(max_examples=volume(30, 1_000), deadline=None)
def test_sums_are_sums(numbers: list[int]) -> None:
    held: Any = MISSING
    for number in numbers:
        held = rules.apply_reducer("sum", "k", held, number)
    assert held == sum(numbers)


def test_a_refused_reducer_names_what_it_needs() -> None:
    for reducer, current, value, part in (
        ("append", {}, 1, "'k' is dict"),
        ("merge", [1], {}, "'k' is list"),
        ("merge", {}, 1, "given value is int"),
        ("sum", "1", 1, "'k' is str"),
        ("sum", None, 1, "'k' is NoneType"),
        ("sum", 1, True, "given value is bool"),
    ):
        with pytest.raises(InvalidValue, match=part):
            rules.apply_reducer(reducer, "k", current, value)


def test_time_is_over_when_its_milliseconds_are() -> None:
    for ttl, milliseconds in (
        (0.001, 1),
        (0.0014, 1),
        (1, 1_000),
        (1.5, 1_500),
        (rules.MAX_TTL, 3_162_240_000_000),
    ):
        assert rules.expiry(rules.check_options(EntryOptions(ttl=ttl), Scope.GLOBAL), 5) == 5 + milliseconds
    assert rules.expiry(EntryOptions(), 5) is None


def edge(source: str, target: str, kind: str = "to") -> Edge:
    return Edge(scope="global", source=source, kind=kind, target_scope="global", target=target)


def asking(edges: list[Edge], asked: list[EdgeQuery]) -> rules.EdgeReader:
    """A backend's answers, in order and within the limit."""
    ordered = sorted(edges, key=lambda one: (one.source, one.kind, one.target))

    def ask(query: EdgeQuery) -> list[Edge]:
        asked.append(query)
        wanted, end = set(query.keys), "source" if query.direction == "out" else "target"
        return [one for one in ordered if getattr(one, end) in wanted][: query.limit]

    return ask


def test_a_key_with_more_edges_than_an_answer_holds_loses_none() -> None:
    edges = [edge("hub", f"leaf{number:06}") for number in range(10_500)]
    asked: list[EdgeQuery] = []
    reached = rules.traverse(asking(edges, asked), ("global", "hub"), 1, "out", (), 100_000)
    assert [one.key for one in reached] == [one.target for one in edges]
    assert len(asked) == 2
    exact = [edge("hub", f"leaf{number:06}") for number in range(10_000)]
    assert len(rules.load_edges(asking(exact, asked), [("global", "hub")], "both", ())) == 10_000


def test_many_keys_are_asked_for_in_few_questions_of_bounded_size() -> None:
    middle = [f"m{number:04}" for number in range(1_000)]
    edges = [edge("a", key) for key in middle] + [edge(key, "z") for key in middle]
    asked: list[EdgeQuery] = []
    reached = rules.traverse(asking(edges, asked), ("global", "a"), 5, "out", (), 100_000)
    assert [(one.key, one.depth) for one in reached] == [(key, 1) for key in middle] + [("z", 2)]
    assert max(len(query.keys) for query in asked) <= rules.MAX_QUERY_KEYS
    assert len(asked) <= 6


def test_a_limit_ends_a_walk_before_it_has_seen_everything() -> None:
    chain = [edge(f"k{number:03}", f"k{number + 1:03}") for number in range(60)]
    asked: list[EdgeQuery] = []
    reached = rules.traverse(asking(chain, asked), ("global", "k000"), 64, "out", (), 3)
    assert [one.key for one in reached] == ["k001", "k002", "k003"]
    assert len(asked) == 3


def test_walks_do_not_depend_on_the_order_of_answers() -> None:
    random = seeded("walks")
    for _ in range(volume(20, 500)):
        edges = [edge(random.choice("abcdef"), random.choice("abcdef"), random.choice("xy")) for _ in range(12)]
        shuffled = random.sample(edges, len(edges))
        for direction in ("out", "in", "both"):
            one, other = (
                rules.traverse(asking(some, []), ("global", "a"), 4, direction, (), 100) for some in (edges, shuffled)
            )
            assert one == other
