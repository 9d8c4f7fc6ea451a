"""What providers report corrects estimates: a window is neither wasted nor passed, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

import holdfast
from holdfast import ContextPack, Holdfast
from holdfast.client.session import Session
from holdfast.flow.packs import pack as pack_flow
from holdfast.flow.packs.manifest import iter_packs
from holdfast.model import calibration as model_calibration
from holdfast.model.calibration import CALL_LIMIT, CALLS_NEEDED, MODEL_LIMIT, SMALL_REQUEST
from holdfast.model.registry import ModelRegistry
from holdfast.records.events.envelope import DEFAULT_TENANT
from tests.scale import seeded, volume

TOKENIZER = "estimate:2"
CLAUDE, GPT = "claude-opus-4-7", "gpt-4o"
SAMPLES = some.lists(
    some.tuples(some.integers(SMALL_REQUEST, 10**6), some.integers(1, 3 * 10**6)), max_size=3 * CALL_LIMIT
)


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as opened:
        yield opened


def noted(calibration: ModelRegistry, *calls: tuple[int, int]) -> float | None:
    for estimated, reported in calls:
        calibration.note(CLAUDE, estimated, reported, TOKENIZER)
    return calibration.calibration(CLAUDE, TOKENIZER)


# the factor


def test_an_estimate_that_is_too_high_is_believed_after_some_calls() -> None:
    calibration = ModelRegistry()
    for _ in range(CALLS_NEEDED - 1):
        assert noted(calibration, (10_000, 6_000)) is None
    assert noted(calibration, (10_000, 6_000)) == 0.62  # 0.6 and three percent of it, in whole hundredths
    assert noted(calibration, *[(10_000, 5_000)] * 10, (10_000, 8_000), (10_000, 5_000)) == 0.83


def test_an_estimate_that_is_too_low_is_corrected_at_once() -> None:
    assert noted(ModelRegistry(), (10_000, 10_001)) == 1.04
    assert noted(ModelRegistry(), (10_000, 12_000)) == 1.24
    assert noted(ModelRegistry(), (10_000, 10_000)) is None


def forgets(calibration: ModelRegistry) -> None:
    assert noted(calibration, (10_000, 15_000), *[(10_000, 8_000)] * (CALL_LIMIT - 1)) == 1.55
    assert noted(calibration, (10_000, 8_000)) == 0.83


def test_only_the_last_calls_count() -> None:
    forgets(ModelRegistry())


def covers(calls: list[tuple[int, int]]) -> None:
    """A budget that was divided by the factor holds every request that is remembered, as large as the model takes."""
    factor, window = noted(ModelRegistry(), *calls), 200_000
    counted = [one for one in calls if one[1] * 4 >= one[0]][-CALL_LIMIT:]
    if factor is None:
        assert len(counted) < CALLS_NEEDED
        assert all(reported <= estimated for estimated, reported in counted)
        return
    assert 0.5 <= factor <= 4
    budget = floor(window / factor)
    for estimated, reported in counted:
        assert budget * min(reported / estimated, 4) <= window
    largest = max(reported / estimated for estimated, reported in counted)
    assert factor <= max(largest * 1.03 + 0.0101, 0.5)


@settings(max_examples=volume(80, 3_000), deadline=None)
@given(calls=SAMPLES)
def test_what_fits_by_the_factor_fits_the_window(calls: list[tuple[int, int]]) -> None:
    covers(calls)


def test_what_is_around_a_small_request_is_not_taken_for_a_share() -> None:
    assert noted(ModelRegistry(), *[(50, 40)] * 20) is None, "nothing that is small says that an estimate is too high"
    assert noted(ModelRegistry(), (50, 400)) == 1.40, "350 tokens too many are not eight times as many"
    assert noted(ModelRegistry(), (SMALL_REQUEST - 1, 2 * SMALL_REQUEST)) == 2.07
    assert noted(ModelRegistry(), (SMALL_REQUEST, 2 * SMALL_REQUEST)) == 2.06


@pytest.mark.parametrize("calls", [(0, 5), (5_000, 0), (-5, 5), (5_000, -1), (10_000, 2_499), (0, 0)])
def test_what_cannot_be_about_the_same_request_is_not_noted(calls: tuple[int, int]) -> None:
    assert noted(ModelRegistry(), *[calls] * (2 * CALLS_NEEDED)) is None


def test_a_budget_is_at_most_doubled_and_quartered() -> None:
    assert noted(ModelRegistry(), *[(10_000, 3_000)] * CALLS_NEEDED) == 0.5
    assert noted(ModelRegistry(), (10_000, 10**9)) == 4


def test_the_memory_is_bounded_and_the_oldest_model_goes_first() -> None:
    calibration = ModelRegistry()
    for number in range(3 * MODEL_LIMIT):
        for _ in range(2 * CALL_LIMIT):
            calibration.note(f"m{number}", 10_000, 11_000, TOKENIZER)
        calibration.note(CLAUDE, 10_000, 11_000, TOKENIZER)
    assert len(calibration._calibration._ratios) == MODEL_LIMIT
    assert max(map(len, calibration._calibration._ratios._kept.values())) == CALL_LIMIT
    newest = calibration.calibration(f"m{3 * MODEL_LIMIT - 1}", TOKENIZER)
    assert calibration.calibration(CLAUDE, TOKENIZER) == newest == 1.14
    assert calibration.calibration("m0", TOKENIZER) is None


# which models


def exact_stay(models: ModelRegistry) -> None:
    for model, tokenizer in [(GPT, None), (GPT, "o200k_base"), (None, None), ("", None), ("  ", "estimate:2")]:
        models.note(model, 10_000, 20_000, tokenizer)
        assert models.calibration(model, tokenizer) is None


def test_exact_counts_are_never_calibrated_nor_those_for_nobody() -> None:
    exact_stay(ModelRegistry())


@pytest.mark.parametrize(("model", "tokenizer"), [(CLAUDE, None), ("my-model", "o200k_base"), (GPT, "estimate:2")])
def test_an_estimate_is_calibrated_for_its_model_and_its_tokenizer(model: str, tokenizer: str | None) -> None:
    models = ModelRegistry()
    models.note(model, 10_000, 20_000, tokenizer)
    assert models.calibration(model, tokenizer) == models.calibration(f"host/{model.upper()}", tokenizer) == 2.06
    assert models.calibration(model, "estimate:1.25") is None
    assert models.calibration("claude-opus-4-8", tokenizer) is None


def test_a_clients_own_tokenizer_is_calibrated_unless_it_says_that_it_is_exact() -> None:
    def thirds(text: str) -> int:
        return len(text) // 3

    models = ModelRegistry(thirds)
    models.note(GPT, 10_000, 20_000)
    assert models.calibration(GPT) == 2.06


# packs


def note(hf: Holdfast, pack: ContextPack, reported: int) -> None:
    """What whoever calls a model does when it has answered."""
    models = hf.env.models
    assert models is not None
    models.note(pack.model, pack.tokens, reported, pack.tokenizer, tenant=DEFAULT_TENANT)


def grown(hf: Holdfast, model: str, id: str = "s") -> Session:
    chat = hf.session(id, model=model, system="Be terse.")
    if not chat.messages():
        chat.append([f"{number} " + "some words and more " * 60 for number in range(12)])
    return chat


def default_follows(hf: Holdfast) -> None:
    chat, info = grown(hf, CLAUDE), holdfast.models.model_info(CLAUDE)
    pack = chat.pack()
    assert pack.budget == info.input_budget
    assert pack.tokens >= SMALL_REQUEST
    note(hf, pack, 2 * pack.tokens)
    again = chat.pack()
    assert again.budget == floor(info.input_budget / 2.06)
    assert (again.limited_by, again.exact, again.tokens) == (None, False, pack.tokens)
    with hf.frame("work", session="s") as frame:
        assert (frame.pack().budget, frame.pack().limited_by) == (again.budget, None)
    with hf.frame("tight", session="s", limits=holdfast.Limits(context_tokens=5_000)) as frame:
        assert (frame.pack().budget, frame.pack().limited_by) == (5_000, None)


def test_the_default_budget_is_the_window_in_estimated_tokens(hf: Holdfast) -> None:
    default_follows(hf)


def explicit_stays(hf: Holdfast) -> None:
    chat = grown(hf, CLAUDE)
    before = chat.pack(5_000)
    note(hf, chat.pack(), 2 * chat.pack().tokens)
    after = chat.pack(5_000)
    assert (after.budget, after.limited_by) == (5_000, None)
    assert after.messages == before.messages
    with hf.frame("work", session="s") as frame:
        assert frame.pack(5_000).budget == 5_000
        most = holdfast.models.model_info(CLAUDE).input_budget
        assert (frame.pack(10**9).budget, frame.pack(10**9).limited_by) == (most, "context_tokens")


def test_an_explicit_budget_is_left_alone(hf: Holdfast) -> None:
    explicit_stays(hf)


def test_a_frame_that_has_less_left_to_spend_says_so(hf: Holdfast) -> None:
    chat = grown(hf, CLAUDE)
    note(hf, chat.pack(), 2 * chat.pack().tokens)
    with hf.frame("work", session="s", tokens=9_000) as frame:
        assert (frame.pack().budget, frame.pack().limited_by) == (9_000, "available")


def test_exact_packs_stay_as_they_are(hf: Holdfast) -> None:
    chat = grown(hf, GPT)
    for _ in range(CALLS_NEEDED):
        note(hf, chat.pack(), 2 * chat.pack().tokens)
    assert chat.pack().budget == holdfast.models.model_info(GPT).input_budget


def test_clients_learn_each_for_themselves_and_the_same_from_the_same(hf: Holdfast) -> None:
    with holdfast.open("memory:") as other:
        for one in (hf, other):
            grown(one, CLAUDE)
        note(hf, grown(hf, CLAUDE).pack(), 30_000)
        assert grown(other, CLAUDE).pack().budget == holdfast.models.model_info(CLAUDE).input_budget
        note(other, grown(other, CLAUDE).pack(), 30_000)
        packs = [grown(one, CLAUDE).pack() for one in (hf, other, hf)]
    assert len({(pack.budget, pack.tokens, len(pack.messages)) for pack in packs}) == 1


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model that takes little, whose tokens are estimated."""
    from holdfast.model import registry as models

    monkeypatch.setattr(models, "_registered", {})
    holdfast.models.register_model("tiny", window=9_000, reply_reserve=1_000)
    yield "tiny-1"
    models._look_up.cache_clear()


def calls(hf: Holdfast, model: str, share: Callable[[], float], count: int) -> list[tuple[ContextPack, int]]:
    """A conversation that grows for ever, what its model was shown, and what the provider said that had."""
    chat, found = hf.session("long", model=model), []
    for number in range(count):
        chat.append(f"{number} " + "some words and more " * 90)
        pack = chat.pack()
        chat.packs.begin_model_call(pack)
        found.append((pack, round(pack.tokens * share())))
        note(hf, *found[-1])
    return found


def fills(hf: Holdfast, model: str, share: float) -> None:
    random, window = seeded("calibration"), 8_000
    found = calls(hf, model, lambda: share * random.uniform(0.97, 1), 50)
    late = [reported for _, reported in found[30:]]
    assert max(reported for _, reported in found) <= window
    assert max(late) >= 0.8 * window, "the window is used"


@pytest.mark.parametrize("share", [0.6, 1.3])
def test_a_window_is_filled_and_not_passed(hf: Holdfast, small_window: str, share: float) -> None:
    fills(hf, small_window, share)


def window_stays(hf: Holdfast, model: str) -> None:
    """Packs of a line are of one window although their budgets differ, so that the next begins where the last did."""
    shares = iter(range(100, 150))
    packs = [pack for pack, _ in calls(hf, model, lambda: next(shares) / 100, 20)]
    assert len({pack.budget for pack in packs}) > 10
    line = "session/long/thread/main"
    asked = [event.facts.asked for event in iter_packs(hf.env, line)]
    assert asked == [holdfast.models.model_info(model).input_budget] * len(packs)


def test_packs_are_of_one_window_while_budgets_change(hf: Holdfast, small_window: str) -> None:
    window_stays(hf, small_window)


# planted bugs


def _mean(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_calibration, "max", lambda *given, **more: _average(*given, **more), raising=False)


def _average(*given: Any, **more: Any) -> Any:
    shares = given[0] if "default" in more else ()
    return sum(shares) // len(shares) if isinstance(shares, tuple) and shares else max(*given, **more)


def _never_forgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_calibration, "CALL_LIMIT", 10**6)


def _no_margin_upwards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_calibration, "LEAST_PERCENT", 10)
    patch.setattr(model_calibration, "MOST_PERCENT", 90)


def _also_exact(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ModelRegistry, "_calibration_key", lambda self, model, name, tenant: (tenant, model or "", name or "")
    )


def _also_explicit(patch: pytest.MonkeyPatch) -> None:
    limits = pack_flow._PackBuilder._compute_budget

    def broken(self: Any) -> tuple[int, int, str | None]:
        self._asked = replace(self._asked, budget=None)
        _, budget, _ = limits(self)
        return budget, budget, None

    patch.setattr(pack_flow._PackBuilder, "_compute_budget", broken)


def _named_by_its_budget(patch: pytest.MonkeyPatch) -> None:
    limits = pack_flow._PackBuilder._compute_budget

    def broken(self: Any) -> tuple[int, int, str | None]:
        _, budget, limited_by = limits(self)
        return budget, budget, limited_by

    patch.setattr(pack_flow._PackBuilder, "_compute_budget", broken)


def _never_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelRegistry, "calibration", lambda self, *given, **how: None)


def _too_few_calls(hf: Holdfast) -> None:
    covers([(10_000, 7_000), (10_000, 12_000), (10_000, 8_000)])


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (_mean, _too_few_calls),
        (_never_forgets, lambda hf: forgets(ModelRegistry())),
        (_no_margin_upwards, _too_few_calls),
        (_also_exact, lambda hf: exact_stay(ModelRegistry())),
        (_also_explicit, explicit_stays),
        (_named_by_its_budget, lambda hf: window_stays(hf, "tiny-1")),
        (_never_known, lambda hf: fills(hf, "tiny-1", 1.3)),
        (_never_known, lambda hf: fills(hf, "tiny-1", 0.6)),
    ],
)
def test_planted_bugs_are_caught(
    hf: Holdfast,
    small_window: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[Holdfast], None],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            check(hf)


def test_what_one_tenant_is_told_changes_nothing_for_another() -> None:
    models = ModelRegistry()
    for _ in range(40):
        models.note("claude-sonnet-4-5", 10_000, 15_000, tenant="acme")
    assert models.calibration("claude-sonnet-4-5", tenant="acme") is not None
    assert models.calibration("claude-sonnet-4-5", tenant="other") is None
