"""Planted bugs: each breaks one promise of packs, and one of the trials or tests says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Frame, Holdfast
from holdfast.client import pack
from holdfast.core.packs import fit, segments, tidy, window
from holdfast.core.packs import rounds as pack_rounds
from holdfast.core.packs.fit import _Attempt
from holdfast.core.sessions import rounds, shorten
from holdfast.core.sessions.rounds import RepairResult
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames.read import read_handle
from holdfast.flow.packs import evidence, recent
from holdfast.flow.packs import pack as pack_flow
from holdfast.flow.packs.evidence import _EvidenceReader
from holdfast.records.packs import CompactionLevel
from tests.packs import pack_trials, test_least_budgets, test_levels
from tests.packs import test_evidence_choice as choice
from tests.packs.worlds import WIDE

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 60


# bugs


def overhead_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "system_tokens", lambda text, count, framing: count(text) if text else 0)


def tools_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "tools_tokens", lambda tools, count, framing: 0)


def critical_evidence_is_dropped(patch: pytest.MonkeyPatch) -> None:
    begin = _Attempt.__init__

    def without(self: _Attempt, *args: Any) -> None:
        begin(self, *args)
        self._items = [item for item in self._items if not item.critical]

    patch.setattr(_Attempt, "__init__", without)


def pins_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    begin = pack_rounds.ThreadRounds.__init__

    def forget(self: pack_rounds.ThreadRounds, *given: Any) -> None:
        begin(self, *given)
        self.all_pinned.clear()
        self.reasons = {nth: why for nth, why in self.reasons.items() if why != "pinned"}

    patch.setattr(pack_rounds.ThreadRounds, "__init__", forget)


def the_newest_round_may_go(patch: pytest.MonkeyPatch) -> None:
    def must(self: _Attempt) -> dict[int, Any]:
        return {nth: form for nth, form in whole(self).items() if nth < self._rounds.number - 1}

    whole = _Attempt._find_required_rounds
    patch.setattr(_Attempt, "_find_required_rounds", must)


def calls_are_torn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "repair_messages", lambda messages: RepairResult(list(messages), []))


def markers_of_evidence_have_no_handle(patch: pytest.MonkeyPatch) -> None:
    cut = shorten.cut_text
    patch.setattr(segments, "cut_text", lambda text, keep, name=None: cut(text, keep))


def markers_of_messages_have_no_handle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack_rounds.ThreadRounds, "name", lambda self, message: None)


def exclusion_of_critical_evidence_is_honoured(patch: pytest.MonkeyPatch) -> None:
    asked = pack.make_pack_request
    patch.setattr(pack, "make_pack_request", lambda m, b, options: asked(m, b, {**options, "force_exclude": True}))


def a_child_sees_what_its_ancestors_have(patch: pytest.MonkeyPatch) -> None:
    def wanted(self: _EvidenceReader) -> Iterator[Any]:
        yield from own(self)
        assert self._seen.frame is not None
        for place in [*frame_read.iter_ancestors(self._env, self._seen.frame.id)][1:]:
            for handle in place.live.handles.values() if place.live is not None else ():
                yield read_handle(self._env, place.stream, handle), place.stream

    own = _EvidenceReader._iter_handles
    patch.setattr(_EvidenceReader, "_iter_handles", wanted)


def failures_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_EvidenceReader, "_omit", lambda self, handle, priority, reason: None)


def floors_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        pack_flow,
        "fit_pack",
        lambda sources, limits: fit.fit_pack(sources, replace(limits, floor=CompactionLevel.NONE)),
    )


def a_sticky_window_never_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window, "sticky_start", lambda tokens, room, share, before, stickiness: max(before, 0))


def a_grid_never_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window, "grid_start", lambda tokens, places, room: 0)


def a_window_begins_a_round_too_early(patch: pytest.MonkeyPatch) -> None:
    for name in ("dense_start", "sticky_start", "grid_start"):
        start = getattr(window, name)
        patch.setattr(window, name, lambda *given, start=start: max(start(*given) - 1, 0))


def what_is_required_is_one_too_many(patch: pytest.MonkeyPatch) -> None:
    too_small = fit.too_small_error
    patch.setattr(fit, "too_small_error", lambda budget, required, parts: too_small(budget, required + 1, parts))


def mandatory_evidence_is_skipped_for_the_next(patch: pytest.MonkeyPatch) -> None:
    """As much as fits, whole: with more room a large one takes the place of two small ones."""

    def take(self: _Attempt) -> None:
        self._included = self._room * self._limits.settings.included_percent // 100
        for item in self._items:
            form = self._forms.whole_form(item)
            if item.mandatory and not item.critical and form.tokens <= self._included:
                self._included -= form.tokens
                self._room -= form.tokens
                self._chosen[item.id] = form

    patch.setattr(_Attempt, "_take_included", take)


TRIALS: list[tuple[Plant, Callable[[int], list[str]], str]] = [
    (overhead_is_not_counted, pack_trials.packs, "size: says"),
    (tools_are_not_counted, pack_trials.packs, "by another tokenizer in a budget"),
    (critical_evidence_is_dropped, pack_trials.packs, "critical: evidence"),
    (pins_are_forgotten, pack_trials.packs, "critical: message"),
    (the_newest_round_may_go, pack_trials.packs, "critical: message"),
    (calls_are_torn, pack_trials.packs, "provider: (openai|anthropic|responses)"),
    (markers_of_evidence_have_no_handle, pack_trials.packs, "critical: evidence"),
    (markers_of_messages_have_no_handle, pack_trials.packs, "cut: m"),
    (exclusion_of_critical_evidence_is_honoured, pack_trials.packs, "critical: evidence"),
    (a_child_sees_what_its_ancestors_have, pack_trials.packs, "unasked: evidence"),
    (failures_are_not_noted, pack_trials.packs, "said: own"),
    (floors_are_ignored, pack_trials.packs, "said: level"),
    (a_grid_never_moves, pack_trials.packs, "size: |KeyError"),
    (a_sticky_window_never_moves, pack_trials.kept, "size: |KeyError"),
    (a_window_begins_a_round_too_early, pack_trials.packs, "size: .* tokens in a budget of"),
    (what_is_required_is_one_too_many, pack_trials.budgets, "says"),
]


@pytest.mark.parametrize(("plant", "trial", "words"), TRIALS, ids=[plant.__name__ for plant, *_ in TRIALS])
def test_a_planted_bug_is_caught_by_a_trial(
    plant: Plant, trial: Callable[[int], list[str]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(re.search(words, one) for seed in range(SEEDS) for one in tried(trial, seed))


def tried(trial: Callable[[int], list[str]], seed: int) -> list[str]:
    """What goes wrong, also if it goes so wrong that there is no pack."""
    try:
        return trial(seed)
    except KeyError as error:
        return [repr(error)]


# what single tests catch


def evidence_is_chosen_as_it_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fit, "rank_item", lambda item: item.origin.handle_version)


def large_evidence_hides_what_is_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "MIN_CHARS_READ", 0)


def code_is_taken_for_prose(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tidy, "is_prose", lambda text: True)


def breadcrumbs_are_as_long_as_their_goals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segments, "_goal_length", lambda goal, count, most: len(goal))


def a_goal_is_always_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segments, "min", lambda found, key: found[0], raising=False)


def priorities(hf: Holdfast) -> None:
    choice.test_every_priority_is_shown_when_there_is_room_most_important_first(working(hf))


def sizes(hf: Holdfast) -> None:
    choice.test_what_does_not_fit_is_skipped_and_the_next_is_tried(working(hf))


def data(hf: Holdfast) -> None:
    test_levels.test_code_and_data_are_shown_byte_for_byte(hf.session("s"), "yaml", "light")


def breadcrumbs(hf: Holdfast) -> None:
    test_levels.test_a_breadcrumb_takes_no_more_than_its_share(50)


SINGLE: list[tuple[Plant, Callable[[Holdfast], None]]] = [
    (mandatory_evidence_is_skipped_for_the_next, test_least_budgets.test_more_room_never_loses_what_was_asked_for),
    (evidence_is_chosen_as_it_came, priorities),
    (large_evidence_hides_what_is_small, sizes),
    (code_is_taken_for_prose, data),
    (breadcrumbs_are_as_long_as_their_goals, breadcrumbs),
]


@pytest.mark.parametrize(("plant", "test"), SINGLE, ids=[plant.__name__ for plant, _ in SINGLE])
def test_a_planted_bug_is_caught_by_a_test(
    plant: Plant, test: Callable[[Holdfast], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with holdfast.open("memory:") as hf, pytest.raises(AssertionError):
        test(hf)


def test_a_goal_that_costs_more_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    a_goal_is_always_cut(monkeypatch)
    with holdfast.open("memory:") as hf, pytest.raises(pytest.fail.Exception, match="BudgetTooSmall"):
        test_least_budgets.test_a_goal_that_is_hardly_too_long_costs_no_more_cut_than_whole(hf, 42)


def working(hf: Holdfast) -> Frame:
    frame = hf.frame("Work", limits=WIDE)
    frame.open()
    return frame
