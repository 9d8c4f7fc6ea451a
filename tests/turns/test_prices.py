"""What calls cost: by the table, by own prices, by a hook; never guessed, never charged twice, never in the way."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import holdfast
from holdfast import Holdfast, Message, Usage
from holdfast.connect import make_price_function
from holdfast.errors import InvalidValue
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.flow.sessions.append import add_cost
from holdfast.model import prices
from holdfast.model.prices import LONG_PROMPT, PRICES, compute_cost, register_price
from holdfast.records.batches import SessionQuery
from holdfast.records.usage import NANO_USD
from tests.scale import volume

M = 1_000_000
TRIES = settings(max_examples=volume(60, 2_000), deadline=None)


@pytest.fixture(autouse=True)
def own_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of one test stay in it."""
    monkeypatch.setattr(prices, "_registered", {})


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as opened:
        yield opened


def usages(most: int = 80_000) -> some.SearchStrategy[Usage]:
    """Calls, with input that was read from a cache, written to one, or neither."""
    tokens = some.integers(0, most)
    return some.builds(
        lambda fresh, cached, written, output: Usage(
            input=fresh + cached + written, cached_input=cached, cache_write=written, output=output
        ),
        *(tokens for _ in range(4)),
    )


models = some.sampled_from(sorted(PRICES))


# the table


@pytest.mark.parametrize(
    ("model", "usage", "usd"),
    [
        ("gpt-4o", Usage(input=M), "2.50"),
        ("gpt-4o", Usage(output=M), "10"),
        ("openai/gpt-4o-2024-08-06", Usage(input=M, cached_input=M), "1.25"),
        ("gpt-4o-2024-05-13", Usage(input=M, output=M), "20"),
        ("gpt-4o-mini-2024-07-18", Usage(input=3, cached_input=1, output=2), "0.000001575"),
        ("gpt-4.1-nano", Usage(input=M, cached_input=M // 2, output=M), "0.4625"),
        ("gpt-5-2025-08-07", Usage(input=1_000, output=1_000, reasoning=900), "0.01125"),
        ("gpt-5.2-chat-latest", Usage(output=1_000), "0.014"),
        ("gpt-6-sol", Usage(input=200_000, cache_write=200_000), "0.5"),
        ("o3-mini-2025-01-31", Usage(input=M, output=M), "5.5"),
        ("gpt-4-1106-preview", Usage(input=M), "10"),
        ("gpt-4-0613", Usage(input=M), "30"),
        ("claude-opus-4-20250514", Usage(input=M, cached_input=M), "1.5"),
        ("claude-opus-4-5-20251101", Usage(input=M, cache_write=M), "6.25"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", Usage(input=100_000, output=100_000), "1.8"),
        ("anthropic/claude-3.5-haiku", Usage(input=M), "0.8"),
        ("claude-3-7-sonnet@20250219", Usage(output=M), "15"),
        ("claude-3-5-sonnet-latest", Usage(output=M), "15"),
    ],
)
def test_a_call_costs_what_its_provider_lists(model: str, usage: Usage, usd: str) -> None:
    assert compute_cost(usage, model) == Decimal(usd) * NANO_USD


@pytest.mark.parametrize(
    "model",
    [
        None,
        "",
        " ",
        "my-model",
        "gpt-4o-audio-preview",
        "gpt-4o:extended",
        "ft:gpt-4o-mini-2024-07-18:shop::a1",
        "openai/ft:gpt-4o:shop::a1",
        "gpt-4o-mini-2024-07-18.ft-0a1b",
        "gpt-5.9",
        "gpt-5-ultra",
        "gpt-6",
        "o5",
        "o30",
        "claude",
        "claude-opus-4-9",
        "claude-sonnet-6",
        "claude-3-7-sonnet:thinking",
        "llama-3.1-8b",
        "x" * 10_000,
    ],
)
def test_what_is_not_in_the_table_has_no_price(model: str | None) -> None:
    assert compute_cost(Usage(input=1_000, output=1_000), model) is None


def test_the_table_is_plausible() -> None:
    for name, (rates, above, long) in PRICES.items():
        for input, cached, write, output in (rates, long or rates):
            assert 0 < cached <= input <= write <= 2 * input, name
            assert input < output <= 10 * input, name
        assert long is None or all(dear >= usual for dear, usual in zip(long, rates, strict=True)), name
        assert above is None or above >= 100_000, name
        assert compute_cost(Usage(output=1), name) == rates[3], "each row is found by its own name"


def test_long_prompts_cost_more_as_a_whole() -> None:
    usual, long = (
        compute_cost(Usage(input=tokens, output=1_000), "gpt-6-luna") for tokens in (LONG_PROMPT, LONG_PROMPT + 1)
    )
    assert (usual, long) == (LONG_PROMPT * 100 + 500_000, (LONG_PROMPT + 1) * 200 + 750_000)
    cached = Usage(input=100_001, cached_input=100_000)
    assert compute_cost(cached, "claude-haiku-5-5") == 100_000 * 50 + 500
    assert compute_cost(Usage(input=LONG_PROMPT), "gpt-5.5-pro") == LONG_PROMPT * 30_000
    assert compute_cost(Usage(input=LONG_PROMPT + 1), "gpt-5.5-pro") is None, "what is not published is not guessed"


def additive(model: str, one: Usage, other: Usage) -> None:
    parts = [compute_cost(usage, model) for usage in (one, other)]
    assert compute_cost(one + other, model) == sum(part or 0 for part in parts)


def never_dearer(model: str, usage: Usage) -> None:
    """The same call without a cache, with some of it read from one, and with it written."""
    plain, cached = Usage(input=usage.input, output=usage.output), usage.input - usage.cache_write
    read = Usage(input=usage.input, cached_input=cached, output=usage.output)
    written = Usage(input=usage.input, cache_write=usage.cache_write, output=usage.output)
    costs = [compute_cost(one, model) or 0 for one in (read, plain, written)]
    assert costs == sorted(costs)
    rates = PRICES[model][0]
    assert costs[1] == usage.input * rates[0] + usage.output * rates[3]
    assert costs[1] - costs[0] == cached * (rates[0] - rates[1])


@TRIES
@given(model=models, one=usages(15_000), other=usages(15_000))
def test_costs_of_calls_add_up(model: str, one: Usage, other: Usage) -> None:
    additive(model, one, other)


@TRIES
@given(model=models, usage=usages(30_000))
def test_what_is_cached_is_charged_once_and_is_never_dearer(model: str, usage: Usage) -> None:
    never_dearer(model, usage)


def test_more_cached_than_there_was_is_charged_as_it_is_said() -> None:
    assert compute_cost(Usage(input=10, cached_input=100), "gpt-4o") == 100 * 1_250


# own prices


def test_own_prices_take_the_place_of_the_list() -> None:
    used = Usage(input=M, cached_input=M // 2, output=M)
    register_price("acme", input=1, output=2)
    assert compute_cost(used, "host/Acme-7b.2_chat") == 3 * NANO_USD, "cached input costs what input costs"
    register_price("acme", input=1, output=2, cached_input=Decimal("0.5"), cache_write=0)
    assert compute_cost(used, "acme-7b") == Decimal("2.75") * NANO_USD
    assert compute_cost(Usage(input=M, cache_write=M), "acme-7b") == 0
    register_price("gpt-4o", input=0, output=0)
    assert compute_cost(used, "gpt-4o-2024-08-06") == compute_cost(used, "gpt-4o-audio-preview") == 0
    assert compute_cost(used, "gpt-4o-mini") == 712_500_000, "the list knows more of this name"
    assert compute_cost(used, "ft:gpt-4o-2024-08-06:shop::a1") is None
    register_price("ft:gpt-4o", input=3.75, output=15)
    assert compute_cost(Usage(input=M), "ft:gpt-4o-2024-08-06:shop::a1") == Decimal("3.75") * NANO_USD
    assert compute_cost(Usage(input=M), "gpt-4o") == 0


def test_a_price_is_that_of_the_model_that_answered_unless_there_is_an_own_one() -> None:
    answered = Usage(input=M, model="gpt-4o-2024-08-06")
    assert compute_cost(answered, "my-deployment") == compute_cost(answered, "gpt-4o-mini") == Decimal("2.5") * NANO_USD
    assert compute_cost(Usage(input=M, model="gpt-4o-audio-preview"), "gpt-4o") is None
    register_price("my-deployment", input=7, output=7)
    assert compute_cost(answered, "my-deployment") == 7 * NANO_USD


@TRIES
@given(rate=some.decimals(0, 1_000, places=6), one=usages(), other=usages())
def test_prices_below_a_billionth_are_rounded_once(rate: Decimal, one: Usage, other: Usage) -> None:
    own = {"fine": prices.parse_price({"input": rate, "output": rate})}
    cost, parts = compute_cost(one + other, "fine", own), [compute_cost(usage, "fine", own) for usage in (one, other)]
    assert cost is not None
    assert abs(cost - (one + other).spent * rate * 1_000) <= Decimal("0.5")
    assert abs(cost - sum(part or 0 for part in parts)) <= 1


NO_AMOUNTS = [-1, -0.001, float("nan"), float("inf"), True, "1", 1e9, Decimal("nan"), Decimal("-inf"), [1], None]


@pytest.mark.parametrize("wrong", NO_AMOUNTS)
def test_what_is_no_price_is_refused(wrong: Any) -> None:
    for name in ("input", "output", "cached_input", "cache_write"):
        given = {"input": 1, "output": 1, name: wrong}
        if wrong is None and name in ("cached_input", "cache_write"):
            register_price("acme", **given)
            continue
        with pytest.raises(InvalidValue, match=f"price of {name}"):
            register_price("acme", **given)


@pytest.mark.parametrize("prefix", ["", "  ", "ft:", "/", None, 5, b"gpt"])
def test_a_price_needs_a_name(prefix: Any) -> None:
    with pytest.raises(InvalidValue, match="prefix of their names"):
        register_price(prefix, input=1, output=1)


# clients


def response(model: str = "gpt-4o-2024-08-06", **usage: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "It is sunny."}
    used = {"prompt_tokens": 1_000, "completion_tokens": 10, **usage}
    return {"object": "chat.completion", "model": model, "choices": [{"message": said}], "usage": used}


def test_a_reply_that_is_appended_gets_its_cost(tmp_path: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        chat = hf.session("alice", model="gpt-4o")
        said = chat.append(response(prompt_tokens_details={"cached_tokens": 600}))
        assert said.usage is not None
        assert said.usage.cost == 400 * 2_500 + 600 * 1_250 + 10 * 10_000
        chat.append(response("nobody-knows-it"))
        chat.append(Message(role="assistant", content="x", usage=Usage(input=5, cost=77), model="gpt-4o"))
        total = said.usage.cost + 77
        assert chat.usage.cost == hf.usage().cost == total
    with holdfast.open(tmp_path / "a.db") as hf:
        chat = hf.session("alice", create=False)
        assert [one.usage and one.usage.cost for one in chat.messages()] == [said.usage.cost, None, 77]
        assert chat.usage.cost == total
        hf.journal.rebuild()
        assert hf.usage().cost == total


def test_the_same_reply_with_its_key_is_the_same_whatever_it_costs_by_now(tmp_path: Any) -> None:
    for rate in (1, 2):
        with holdfast.open(tmp_path / "a.db", prices={"gpt-4o": {"input": rate, "output": rate}}) as hf:
            hf.session("alice").append(response(), key="reply")
            assert hf.session("alice").usage.cost == 1_010 * 1_000


def test_a_mapping_is_beside_the_list_and_of_one_client() -> None:
    own = {"acme": {"input": 1, "output": 4}}
    with holdfast.open("memory:", prices=own) as hf, holdfast.open("memory:") as other:
        own["acme"]["input"] = own["gpt-4o"] = 99  # type: ignore[assignment]
        costs = [hf.session("a").append(response(name)).usage for name in ("acme-1", "gpt-4o", "zzz")]
        assert [used and used.cost for used in costs] == [1_040_000, 2_600_000, None]
        used = other.session("a").append(response("acme-1")).usage
        assert used is not None
        assert used.cost is None


@pytest.mark.parametrize("usd", [0, 1, 0.25, Decimal("0.000000001"), 1e-9])
def test_a_function_is_in_place_of_the_list(usd: Any) -> None:
    asked = []

    def mine(model: str | None, usage: Usage) -> Any:
        asked.append((model, usage.input))
        return usd if usage.input < 2_000 else None

    with holdfast.open("memory:", prices=mine) as hf:
        chat = hf.session("a")
        first, second = (chat.append(response(prompt_tokens=tokens)).usage for tokens in (1_000, 2_000))
        assert first is not None
        assert second is not None
        assert first.cost == Decimal(str(usd)) * NANO_USD
        assert second.cost is None
    assert asked == [("gpt-4o-2024-08-06", 1_000), ("gpt-4o-2024-08-06", 2_000)]


async def later(model: str | None, usage: Usage) -> float:
    return 1.0


class Later:
    async def __call__(self, model: str | None, usage: Usage) -> float:
        return 1.0


def raising(model: str | None, usage: Usage) -> Any:
    raise LookupError("no such model")


def giving(wrong: Any) -> Callable[..., Any]:
    return lambda model, usage: wrong


HOOKS: list[Callable[..., Any]] = [raising, lambda: 1, lambda model, usage: later(model, usage)]
HOOKS += [giving(wrong) for wrong in NO_AMOUNTS if wrong is not None]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_costs_one_warning_and_nothing_else(hook: Callable[..., Any]) -> None:
    with holdfast.open("memory:", prices=hook) as hf:
        chat = hf.session("a")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                said = chat.append(response())
                assert said.usage is not None
                assert (said.usage.cost, said.usage.input) == (None, 1_000)
        assert [str(one.message)[:10] for one in told] == ["The prices"]
        assert told[0].filename == __file__
        assert hf.usage() == Usage(input=3_000, output=30, unpriced=3_030)


def test_a_warning_that_is_made_an_error_does_not_stop_anything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with holdfast.open("memory:", prices=raising) as hf:
            assert hf.session("a").append(response()).usage == Usage(input=1_000, output=10, model="gpt-4o-2024-08-06")


def test_an_interrupt_within_a_hook_is_one() -> None:
    def stop(model: str | None, usage: Usage) -> Any:
        raise KeyboardInterrupt

    with holdfast.open("memory:", prices=stop) as hf, pytest.raises(KeyboardInterrupt):
        hf.session("a").append(response())


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        "gpt-4o",
        [("gpt-4o", 1)],
        later,
        Later(),
        Later,
        {"gpt-4o": 2.5},
        {"gpt-4o": {"input": 1}},
        {"gpt-4o": {"input": 1, "output": 1, "cache": 1}},
        {"gpt-4o": {"input": 1, "output": None}},
        {"": {"input": 1, "output": 1}},
        {5: {"input": 1, "output": 1}},
    ],
)
def test_prices_that_are_none_are_refused_before_anything_is_opened(wrong: Any, tmp_path: Any) -> None:
    with pytest.raises(InvalidValue):
        holdfast.open(tmp_path / "a.db", prices=wrong)
    assert list(tmp_path.iterdir()) == []


def fills_only_what_is_open(hf: Holdfast) -> None:
    """What is said stays as it is said; what was not reported is not called free."""
    said, unsaid, nothing = Usage(input=5, cost=1), Usage(input=5), Usage(reasoning=0)
    assert add_cost(hf.env, said, "gpt-4o") == said
    assert add_cost(hf.env, unsaid, "gpt-4o") == Usage(input=5, cost=12_500)
    assert add_cost(hf.env, nothing, "gpt-4o") is nothing
    assert add_cost(hf.env, unsaid, None) is unsaid


def test_only_what_is_not_said_is_filled_in(hf: Holdfast) -> None:
    fills_only_what_is_open(hf)


# a tenant's usage


def talk(hf: Holdfast, sessions: int) -> None:
    for number in range(sessions):
        chat = hf.session(f"s{number}")
        chat.append(["hello", response(), "again", response(prompt_tokens=500)])
        if number % 3 == 0:
            branch = chat.fork(thread="branch")
            branch.append(response(prompt_tokens=7))
        if number % 4 == 0:
            chat.close()


def adds_up(hf: Holdfast) -> None:
    listed = [one.usage for one in hf.sessions()]
    assert hf.usage() == sum(listed, Usage(cost=0))
    assert hf.usage() == sum((hf.session(one.id, create=False).usage for one in hf.sessions()), Usage(cost=0))


def test_a_tenants_usage_is_that_of_all_its_sessions(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hf.usage() == Usage(cost=0)
    monkeypatch.setattr(sessions_flow, "USAGE_PAGE", 3)
    acme, other = hf.tenant("acme"), hf.tenant("other")
    talk(acme, 8)
    talk(other, 2)
    adds_up(acme)
    adds_up(other)
    assert acme.usage().input == 8 * 1_500 + 3 * 7
    assert hf.usage() == Usage(cost=0)


def test_the_same_through_asyncio() -> None:
    asyncio.run(through_asyncio())


async def through_asyncio() -> None:
    async with holdfast.open_async("memory:", prices={"gpt-4o": {"input": 1, "output": 1}}) as hf:
        chat = await hf.session("a")
        await chat.append(response())
        assert await hf.usage() == Usage(input=1_000, output=10, cost=1_010_000)


# planted bugs


def _cached_beside_input(patch: pytest.MonkeyPatch) -> None:
    def of(self: prices.Price, usage: Usage) -> int:
        total = usage.input * self.input + usage.cached_input * self.cached_input + usage.output * self.output
        return (total + usage.cache_write * self.cache_write) // 1_000

    patch.setattr(prices.Price, "cost", of)


def _rounded_each(patch: pytest.MonkeyPatch) -> None:
    def of(self: prices.Price, usage: Usage) -> int:
        return round(usage.input * self.input, -7) // 1_000 + usage.output * self.output // 1_000

    patch.setattr(prices.Price, "cost", of)


def _first_page_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions_flow, "USAGE_PAGE", 3)
    usage = sessions_flow.tenant_usage

    def broken(env: Any) -> Usage:
        page = env.journal.sessions(env.tenant, SessionQuery(limit=3))
        return usage(env) if len(page) < 3 else sum((row.usage for row in page), Usage(cost=0))

    patch.setattr(sessions_flow, "tenant_usage", broken)


def _always_filled(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "add_cost", lambda env, usage, model: Usage(input=usage.input, cost=12_500))


def _many(hf: Holdfast) -> None:
    talk(hf, 5)
    adds_up(hf)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (_cached_beside_input, lambda hf: never_dearer("gpt-4o", Usage(input=100, cache_write=10))),
        (_rounded_each, lambda hf: additive("gpt-4o", Usage(input=1), Usage(input=2))),
        (_first_page_only, _many),
        (_always_filled, fills_only_what_is_open),
    ],
)
def test_planted_bugs_are_caught(
    hf: Holdfast, plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[Holdfast], None]
) -> None:
    check(hf)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            check(hf.tenant("planted"))


def test_list_prices_are_read_when_a_call_has_first_ended() -> None:
    assert make_price_function(None)(None, Usage(input=1)) is None
    assert make_price_function(None)("gpt-4o", Usage(input=1)) == 2_500
