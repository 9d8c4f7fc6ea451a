"""Which evidence is shown: asked for first, then by priority, relevance and recency; and what becomes of the rest."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ContextPack, Frame, Holdfast, Limits, Settings
from holdfast.core.packs import fit
from holdfast.errors import EvidenceFailed
from holdfast.flow.packs import evidence
from holdfast.testing.clock import FrozenClock
from tests.packs.worlds import PLENTY, PRIORITIES, WIDE
from tests.scale import seeded, volume
from tests.sessions.generated import text

SCORES = dict(zip(PRIORITIES, (100, 75, 50, 25, 10), strict=True))


@pytest.fixture
def clock() -> FrozenClock:
    """Time that passes when it is told to."""
    return FrozenClock()


@pytest.fixture
def hf(clock: FrozenClock) -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=clock) as client:
        yield client


@pytest.fixture
def frame(hf: Holdfast) -> Iterator[Frame]:
    with hf.frame("Work", limits=WIDE) as opened:
        yield opened


def shown(pack: ContextPack) -> list[str]:
    """Handles in the order shown."""
    return [one.handle_id for one in pack.evidence]


def reasons(pack: ContextPack) -> dict[str, str]:
    """Why what is not shown is not."""
    return {one.id: one.reason for one in pack.decisions if one.kind == "evidence" and one.outcome == "omitted"}


def attach(frame: Frame, id: str, priority: str = "medium", body: str = "some words of evidence") -> None:
    frame.attach("document", handle=id, body=body, priority=priority)


# order


def test_every_priority_is_shown_when_there_is_room_most_important_first(frame: Frame) -> None:
    for priority in reversed(PRIORITIES):
        attach(frame, priority, priority)
    assert shown(frame.pack(PLENTY)) == [*PRIORITIES]


def test_of_one_priority_what_answers_the_question_then_the_newest(frame: Frame, clock: FrozenClock) -> None:
    attach(frame, "first", body="something about trains")
    attach(frame, "second", body="something about trains")
    clock.advance(5)
    attach(frame, "newer", body="something about trains")
    clock.advance(5)
    attach(frame, "flights", body="something about flights")
    attach(frame, "both", body="a hotel and flights")
    clock.advance(5)
    attach(frame, "newest", body="something about trains")
    assert shown(frame.pack(PLENTY)) == ["newest", "both", "flights", "newer", "second", "first"]
    asked = frame.pack(PLENTY, query="hotel flights")
    assert shown(asked) == ["both", "flights", "newest", "newer", "second", "first"]


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_a_clock_that_stands_still_or_goes_back_reorders_no_evidence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = FrozenClock()
    with holdfast.open(url, clock=clock) as hf, hf.frame("Work", limits=WIDE) as frame:
        for nth, step in enumerate((0, 0, -5_000, 3, -10, 0, 60_000)):
            clock.jump(step)
            attach(frame, f"h{nth}")
        newest_first = [f"h{nth}" for nth in reversed(range(7))]
        assert shown(frame.pack(PLENTY)) == newest_first
        attach(frame, "h2", body="changed words")
        assert shown(frame.pack(PLENTY)) == ["h2", *(id for id in newest_first if id != "h2")]


def test_order_by_the_clock_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: evidence of one priority is ordered by the millisecond in which it was attached."""
    real, at = evidence.read_handle, dict[str, int]()

    def note_time(*given: Any) -> Any:
        found = real(*given)
        at[found.id] = found.at
        return found

    monkeypatch.setattr(evidence, "read_handle", note_time)
    monkeypatch.setattr(fit, "rank_item", lambda item: -at[item.id])
    with pytest.raises(AssertionError):
        test_a_clock_that_stands_still_or_goes_back_reorders_no_evidence("memory:", tmp_path, monkeypatch)


def test_what_is_asked_for_by_name_comes_before_what_is_more_important(frame: Frame) -> None:
    for priority in PRIORITIES:
        attach(frame, priority, priority)
    assert shown(frame.pack(PLENTY, include=["background"])) == ["critical", "background", "high", "medium", "low"]


def test_with_less_room_the_last_in_order_go_first() -> None:
    rng = seeded("order")
    for _ in range(volume(4, 300)):
        clock = FrozenClock()
        with holdfast.open("memory:", clock=clock) as hf, hf.frame("Work", limits=WIDE) as frame:
            expected = equal_handles(frame, clock, rng)
            everything = frame.pack(PLENTY, include=expected[:2])
            assert shown(everything) == expected
            for budget in range(frame.pack(PLENTY, min_compaction="critical").tokens, everything.tokens, 25):
                pack = frame.pack(budget, include=expected[:2])
                assert shown(pack) == expected[: len(pack.evidence)]


def equal_handles(frame: Frame, clock: FrozenClock, rng: random.Random) -> list[str]:
    """Handles of one size; gives them in the order in which they should be chosen, with two that are asked for."""
    found = []
    for nth in range(12):
        clock.jump(rng.choice([0, 0, 7, -7]))
        priority = rng.choice(PRIORITIES[1:])
        attach(frame, f"{priority}-{nth:02}", priority, "the same words " * 4)
        found.append((-SCORES[priority], -nth, f"{priority}-{nth:02}"))
    rest = [id for *_, id in sorted(found)]
    chosen = sorted(rng.sample(rest, 2), key=rest.index)
    return [*chosen, *(id for id in rest if id not in chosen)]


def test_what_does_not_fit_is_skipped_and_the_next_is_tried(frame: Frame) -> None:
    attach(frame, "large", "high", "words " * 3_000)
    attach(frame, "larger", "medium", "words " * 9_000)
    attach(frame, "small", "low", "a few words")
    pack = frame.pack(600)
    assert shown(pack) == ["small"]
    assert reasons(pack) == {"large": "no_room", "larger": "no_room"}


def test_among_many_the_newest_are_read(frame: Frame, clock: FrozenClock) -> None:
    for nth in range(300):
        clock.advance(1)
        attach(frame, f"h{nth}", body=f"{nth} and some words")
    pack = frame.pack(1_000)
    assert shown(pack)[:3] == ["h299", "h298", "h297"]
    assert reasons(pack)["h0"] == "not_read"


# shares


def test_what_is_asked_for_takes_three_quarters_at_most(hf: Holdfast, frame: Frame) -> None:
    frame.append([f"said {nth} " + "words " * 20 for nth in range(30)])
    for nth in range(30):
        attach(frame, f"h{nth}", body=f"{nth} " + text(random.Random(nth), 40))
    pack = frame.pack(1_500, include=[f"h{nth}" for nth in range(30)], stickiness=0)
    used = pack.token_summary.breakdown
    assert 0.5 * 1_500 < used.evidence <= 0.75 * 1_500
    assert used.conversation + used.summaries > 0.2 * 1_500


@pytest.mark.parametrize(("rounds", "handles"), [(100, 0), (0, 60), (100, 60)])
def test_what_one_does_not_use_of_its_share_the_other_gets(frame: Frame, rounds: int, handles: int) -> None:
    frame.append("The newest.")
    for nth in range(handles):
        attach(frame, f"h{nth}", body="some words " * 10)
    if rounds:
        frame.append([f"said {nth} " + "words " * 10 for nth in range(rounds)])
    pack = frame.pack(1_500, stickiness=0)
    used = pack.token_summary.breakdown
    assert pack.tokens > 0.93 * 1_500
    if rounds and handles:
        assert 0.3 * 1_500 < used.evidence < 0.45 * 1_500


def test_shares_are_settings() -> None:
    for percent in (20, 80):
        settings = Settings(conversation_percent=percent)
        with holdfast.open("memory:", settings=settings) as hf, hf.frame("Work", limits=WIDE) as frame:
            frame.append([f"said {nth} " + "words " * 10 for nth in range(150)])
            for nth in range(60):
                attach(frame, f"h{nth}", body="some words " * 10)
            used = frame.pack(2_000, stickiness=0).token_summary.breakdown
            assert abs(used.evidence / 2_000 - (1 - percent / 100)) < 0.1


# what cannot be read


def test_one_handle_that_fails_does_not_fail_the_pack(frame: Frame) -> None:
    attach(frame, "good")
    frame.attach("document", handle="bad", target="state:user/1#nothing", priority="high")
    frame.attach("url", handle="web", target="https://example.com/", priority="low")
    pack = frame.pack(PLENTY, include=["bad"])
    assert shown(pack) == ["good"]
    assert reasons(pack) == {"bad": "failed", "web": "failed"}
    assert [*pack.metadata.failed] == ["bad", "web"]
    assert "nothing" in pack.metadata.failed["bad"]


def test_critical_evidence_that_fails_is_an_error_that_names_it(frame: Frame) -> None:
    frame.attach("document", handle="bad", target="state:user/1#nothing", priority="critical")
    with pytest.raises(EvidenceFailed, match="bad") as raised:
        frame.pack(PLENTY)
    assert (raised.value.handle, bool(raised.value.reason)) == ("bad", True)
    assert shown(frame.pack(PLENTY, exclude=["bad"], force_exclude=True)) == []


def test_erased_evidence_is_left_out_and_said_to_be_erased(hf: Holdfast, frame: Frame) -> None:
    hf.as_user("bob").index.add_handle(frame.id, "document", handle="h", body="of Bob", priority="high")
    assert shown(frame.pack(PLENTY)) == ["h"]
    hf.journal.erase("bob")
    pack = frame.pack(PLENTY)
    assert (shown(pack), reasons(pack)) == ([], {"h": "erased"})


# leaving out and asking for


def test_excluding_wins_over_asking_for_it(frame: Frame) -> None:
    attach(frame, "h", "high")
    pack = frame.pack(PLENTY, include=["h"], exclude=["h"])
    assert (shown(pack), reasons(pack)) == ([], {"h": "excluded"})


def test_critical_evidence_is_excluded_by_force_only(frame: Frame) -> None:
    attach(frame, "h", "critical")
    refused = frame.pack(PLENTY, exclude=["h"])
    assert (shown(refused), refused.metadata.refused_exclusions) == (["h"], ("h",))
    forced = frame.pack(PLENTY, exclude=["h"], force_exclude=True)
    assert (shown(forced), forced.metadata.refused_exclusions, reasons(forced)) == ([], (), {"h": "excluded"})


def test_names_that_nobody_has_are_listed(hf: Holdfast, frame: Frame) -> None:
    attach(frame, "h")
    pack = frame.pack(PLENTY, include=["invented", "h", "m57", "other"])
    assert (shown(pack), pack.metadata.missing_handles) == (["h"], ("invented", "m57", "other"))
    assert hf.session("s").pack(PLENTY, include=["h"]).metadata.missing_handles == ("h",)


def test_a_child_sees_its_ancestors_evidence_only_by_name(frame: Frame) -> None:
    attach(frame, "root", "critical", "evidence of the root")
    frame.append("said by the root")
    with (
        frame.frame("Below", limits=WIDE) as child,
        child.frame("Deeper", limits=Limits(context_tokens=900, depth=8)) as leaf,
    ):
        attach(child, "child", "high", "evidence of the child")
        attach(leaf, "leaf")
        assert shown(leaf.pack()) == ["leaf"]
        assert not any("of the" in message.text or "said by" in message.text for message in leaf.pack().messages)
        asked = leaf.pack(include=["root", "child"])
        assert sorted(shown(asked)) == ["child", "leaf", "root"]
        assert asked.metadata.missing_handles == ()
        frame.detach("root")
        assert leaf.pack(include=["root"]).metadata.missing_handles == ("root",)
        assert shown(frame.pack(PLENTY, include=["leaf"])) == []
