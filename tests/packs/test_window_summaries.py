"""Levels moderate and aggressive summarise what is older than the window, and no level is reported without its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from bench.counting import counting
from holdfast import ContextPack, Holdfast, Session
from holdfast.compaction import CompactionConfig
from holdfast.core.packs import fit, segments, window
from holdfast.errors import Conflict, NotFound
from holdfast.flow.packs import manifest
from holdfast.flow.packs.older import WindowSummaries
from holdfast.flow.sessions.read import iter_places, load_messages
from holdfast.records.packs import LEVELS
from holdfast.testing.journal_contract import dump_projections
from tests.packs.pack_rules import size_problems
from tests.packs.worlds import PLENTY, WIDE, world
from tests.scale import seeded, volume

BUDGET = 600
SECRET = "The password is HUNTER2."
LIGHT_CHARS = 8_000


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url) as client:
        yield client
        assert client.journal.verify().findings == ()
        live = dump_projections(client.env.journal)
        client.journal.rebuild()
        assert dump_projections(client.env.journal) == live


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "b.db", durability="fast") as client:
        yield client


def say(chat: Session, number: int, first: int = 0) -> None:
    for nth in range(first, first + number):
        chat.append(f"Day {nth}: where shall we go, and what shall we see there?")
        chat.append({"role": "assistant", "content": f"On day {nth} you could walk to village number {nth}."})


def talk(hf: Holdfast, number: int = 30, id: str = "s") -> Session:
    chat = hf.session(id, model="gpt-5-mini", system="You plan trips.")
    say(chat, number)
    return chat


def made(hf: Holdfast, stream: str = "session/s/thread/main") -> list[Any]:
    return list(hf.journal.events(stream, types=["summary.made"]))


def call(chat: Session, nth: int, **how: Any) -> ContextPack:
    """One call of a model, and its answer."""
    pack = chat.pack(BUDGET, **how)
    chat.packs.begin_model_call(pack)
    say(chat, 1, 1_000 + nth)
    return pack


def summed(pack: ContextPack) -> str:
    return "\n".join(one.text for one in pack.summaries if one.window)


# shown


def test_a_conversation_that_summaries_cover_whole_is_packed_at_any_budget(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-5-mini")
    for nth in range(3):
        chat.append([f"The town T{nth}{one} has {one} inhabitants and lies at the river R{one}." for one in range(40)])
        chat.compact(keep=0)
    for budget in range(100, 1_400, 100):
        assert chat.pack(budget).tokens <= budget


def test_what_is_older_than_the_window_is_summarised(hf: Holdfast) -> None:
    chat = talk(hf)
    pack = chat.pack(BUDGET)
    (summary,) = pack.summaries
    segment = next(one for one in pack.segments if one.kind == "summary")
    oldest = next(one for one in pack.segments if one.kind == "conversation" and one.id != "earlier")
    assert pack.level == "moderate"
    assert summary.covers[-1].last == oldest.messages[0].version - 1
    assert segment.id == f"m{summary.covers[0].first}-m{summary.covers[0].last}"
    assert "village number" in segment.text
    assert segment.text.startswith(f"Summary of previous context: [{segment.id}]")
    assert pack.conversation.truncated_count + summary.messages + pack.conversation.message_count == 60
    assert [one.outcome for one in pack.decisions if one.kind == "summary"] == ["summarised"]
    assert f"[{pack.conversation.truncated_count} earlier messages are not shown" in str(pack.to_openai())
    assert pack.tokens <= BUDGET


def test_looking_writes_nothing_and_shows_the_same(hf: Holdfast) -> None:
    chat = talk(hf)
    at = hf.env.journal.position()
    first = chat.pack(BUDGET)
    if hf.env.recent is not None:
        hf.env.recent.clear()
    again = chat.pack(BUDGET)
    assert (again.digest, again.summaries) == (first.digest, first.summaries)
    assert hf.env.journal.position() == at
    chat.packs.begin_model_call(first)
    assert chat.pack(BUDGET, as_of=at).digest == first.digest


@pytest.mark.parametrize("floor", ["moderate", "aggressive"])
def test_a_floor_summarises_what_would_fit(hf: Holdfast, floor: str) -> None:
    chat = talk(hf)
    whole, pack = chat.pack(PLENTY), chat.pack(PLENTY, min_compaction=floor)
    assert (whole.level, whole.summaries) == ("none", ())
    assert pack.level == "moderate"  # Nothing is there that only level aggressive would take.
    assert summed(pack)
    assert window.FLOOR_ROUNDS // 2 <= pack.conversation.message_count <= window.FLOOR_ROUNDS
    assert pack.digest != whole.digest


@pytest.mark.parametrize("floor", LEVELS)
def test_a_level_that_did_nothing_is_not_reported(hf: Holdfast, floor: str) -> None:
    chat = hf.session("s")
    chat.append("Hello.")
    assert chat.pack(PLENTY, min_compaction=floor).level == "none"


def test_level_aggressive_summarises_too(hf: Holdfast) -> None:
    with hf.frame("Work", limits=WIDE) as frame:
        frame.append([f"asked {nth} about the amber village and the way there" for nth in range(60)])
        frame.append("the newest " * 40)
        frame.attach("document", handle="h", body="words of evidence " * 400, priority="critical")
        pack = frame.pack(1_000)
    assert pack.level == "aggressive"
    assert summed(pack)


def test_rounds_without_room_for_a_summary_are_left_out_at_level_aggressive(hf: Holdfast) -> None:
    pack = talk(hf).pack(100)
    assert (pack.level, pack.summaries) == ("aggressive", ())
    assert pack.conversation.truncated_count > 0


def test_pinned_messages_and_files_are_not_repeated(hf: Holdfast) -> None:
    chat = talk(hf, 12)
    chat.append(SECRET, policy="pinned")
    say(chat, 10, 50)
    pack = chat.pack(BUDGET)
    assert SECRET not in summed(pack)
    assert str(pack.to_openai()).count("HUNTER2") == 1


def test_a_fork_summarises_what_it_shares(hf: Holdfast) -> None:
    chat = talk(hf)
    fork = chat.fork(thread="b")
    fork.append("What else?")
    pack = fork.pack(BUDGET)
    (summary,) = pack.summaries
    assert "village number" in summary.text
    assert {one.stream for one in summary.covers} == {"session/s/thread/main"}
    assert fork.pack_at(fork.packs.begin_model_call(pack)).digest == pack.digest


# journaled


def test_a_summary_is_journaled_in_the_append_of_its_pack(sqlite: Holdfast) -> None:
    chat = talk(sqlite)
    pack = chat.pack(BUDGET)
    with counting(sqlite.env.journal) as counts:
        journaled = chat.packs.begin_model_call(pack)
    assert counts.commits == 1
    (event,) = made(sqlite)
    packed = next(iter(sqlite.journal.events("session/s/thread/main", types=["context.packed"])))
    assert (event.version + 1, event.facts.window) == (packed.version, True)
    assert [(one.stream, one.first) for one in packed.facts.manifest if one.kind == "summary"] == [
        (event.stream, event.version)
    ]
    assert chat.pack_at(journaled).summaries[0].text == pack.summaries[0].text
    assert chat.compaction.summaries() == []  # No compaction: messages are covered by nobody's choice.


def test_a_pack_is_rebuilt_with_the_words_of_its_summary(hf: Holdfast) -> None:
    chat = talk(hf)
    packs = {chat.packs.begin_model_call(pack): pack for pack in [chat.pack(BUDGET), chat.pack(PLENTY)]}
    said = chat.messages()
    chat.rewind(to=said[20])
    chat.reset()
    for journaled, pack in packs.items():
        again = chat.pack_at(journaled)
        assert (again.digest, again.level) == (pack.digest, pack.level)


@pytest.mark.parametrize(
    "how", [{}, {"max_messages": 12, "stickiness": 0.4}, {"min_compaction": "moderate"}, {"layout": "classic"}]
)
def test_the_same_summary_is_shown_until_the_window_moves(hf: Holdfast, how: dict[str, Any]) -> None:
    chat = talk(hf)
    calls = volume(16, 60)
    packs = [call(chat, nth, **how) for nth in range(calls)]
    assert all(map(summed, packs))
    assert len({summed(pack) for pack in packs}) == len(made(hf)) <= calls // 2
    assert how or sum(pack.cached_share > 0.7 for pack in packs) >= calls // 2


def test_making_a_summary_reads_no_more_of_a_longer_history(sqlite: Holdfast) -> None:
    found = []
    for id, number in (("a", 60), ("b", volume(240, 5_000))):
        chat = talk(sqlite, number, id)
        chat.pack(BUDGET)
        sqlite.env.recent.clear()  # type: ignore[union-attr]
        with counting(sqlite.env.journal) as counts:
            assert summed(chat.pack(BUDGET))
        found.append(counts.statements)
    assert found[1] <= found[0]


# retracted


def secretive(hf: Holdfast) -> tuple[Session, Any, str]:
    """A conversation whose last call was shown a secret in a summary."""
    chat = talk(hf, 10)
    before = chat.messages()[-1]
    hf.as_user("ann").session("s").append(SECRET)
    pack = push_out(chat)
    return chat, before, chat.packs.begin_model_call(pack)


def push_out(chat: Session) -> ContextPack:
    """Go on until the secret is only in a summary."""
    for nth in range(100, 140):
        say(chat, 1, nth)
        if SECRET in summed(pack := chat.pack(BUDGET)):
            return pack
    raise AssertionError("the secret was never summarised")


def test_rewound_words_leave_the_summary(hf: Holdfast) -> None:
    chat, before, _ = secretive(hf)
    chat.rewind(to=before)
    say(chat, 8, 200)
    assert "HUNTER2" not in str(chat.pack(BUDGET).to_openai())
    call(chat, 0)
    assert "HUNTER2" not in str(chat.pack(BUDGET).to_openai())


def test_words_before_a_reset_leave_the_summary(hf: Holdfast) -> None:
    chat, _, _ = secretive(hf)
    chat.reset()
    say(chat, 20, 200)
    assert "HUNTER2" not in str(chat.pack(BUDGET).to_openai())


def test_erased_words_leave_the_summary_and_the_journal(hf: Holdfast, tmp_path: Path) -> None:
    chat, _, journaled = secretive(hf)
    hf.journal.erase("ann")
    assert made(hf)[0].content is holdfast.types.ERASED
    again = chat.pack_at(journaled)
    assert "HUNTER2" not in str(again.to_openai())
    assert {one.id for one in again.segments if one.kind == "summary"} <= {*again.metadata.erased}
    pack = chat.pack(BUDGET)
    assert summed(pack)
    assert "HUNTER2" not in str(pack.to_openai())
    assert not any(b"HUNTER2" in path.read_bytes() for path in tmp_path.glob("a.db*"))


def test_a_summary_made_before_an_erasure_is_not_journaled_after_it(hf: Holdfast, tmp_path: Path) -> None:
    chat = talk(hf, 10)
    hf.as_user("ann").session("s").append(SECRET)
    pack = push_out(chat)
    hf.journal.erase("ann")
    at = hf.env.journal.position()
    with pytest.raises(Conflict, match="erased"):
        chat.packs.begin_model_call(pack)
    assert hf.env.journal.position() == at
    chat.packs.begin_model_call(chat.pack(BUDGET))
    assert not any(b"HUNTER2" in path.read_bytes() for path in tmp_path.glob("a.db*"))


def test_a_summary_journaled_after_a_rewind_is_not_shown_again(hf: Holdfast) -> None:
    chat = talk(hf, 10)
    before = chat.messages()[-1]
    chat.append(SECRET)
    pack = push_out(chat)
    chat.rewind(to=before)
    chat.packs.begin_model_call(pack)
    say(chat, 8, 200)
    assert "HUNTER2" not in str(chat.pack(BUDGET).to_openai())


def test_no_message_is_summarised_twice(hf: Holdfast) -> None:
    for more in range(1, 5):
        chat = talk(hf, id=f"s{more}")
        chat.append([f"A long story, part {nth}. " + "And so it went on for days. " * 60 for nth in range(6)])
        say(chat, 9, 50)
        pack = chat.pack(1_500)
        chat.packs.begin_model_call(pack)
        chat.compact(pack.conversation.message_count + more, summarizer=lambda messages: "Short.")
        shown = chat.pack(1_500).summaries
        spans = sorted((one.first, one.last) for summary in shown for one in summary.covers)
        assert all(one[1] < other[0] for one, other in pairwise(spans)), spans
        assert any(not one.window for one in shown)


# rules


def test_the_call_that_overflows_is_shown_what_its_rule_compacted(hf: Holdfast) -> None:
    chat = talk(hf)
    chat.compaction.add_rule(CompactionConfig(keep=2, when_packed=True, summarizer=lambda messages: "By the rule."))
    with chat.turn("What shall we eat?", budget=BUDGET) as turn:
        pack = turn.steps()[0].pack
        assert [one.text for one in pack.summaries] == ["By the rule."]
        assert "By the rule." in str(pack.to_openai())
        turn.stop()


def test_a_rule_hears_of_messages_that_are_only_summarised(hf: Holdfast) -> None:
    chat = talk(hf, 14)
    chat.compaction.add_rule(CompactionConfig(keep=2, when_packed=True))
    pack = chat.pack(PLENTY, min_compaction="moderate")
    assert pack.conversation.truncated_count == 0
    chat.packs.begin_model_call(pack)
    assert len(chat.compaction.summaries()) == 1


# light


def test_level_light_shortens_evidence_as_it_does_messages(hf: Holdfast) -> None:
    prose = "We talked about the usual things over lunch. " * 491
    with hf.frame("Work", limits=WIDE) as frame:
        frame.append([prose, "the newest"])
        frame.attach("document", handle="h", body=prose)
        pack = frame.pack(PLENTY, min_compaction="light")
        (message, _), (evidence,) = pack.conversation.messages, pack.evidence
        left_out = len(prose) - LIGHT_CHARS
        assert pack.level == "light"
        assert f"[… {left_out} characters left out: h …]" in evidence.content
        assert abs(len(message.text) - len(evidence.content)) < 5
        assert evidence.truncated
        journaled = hf.index.begin_model_call(frame.id, pack)
        assert hf.index.pack_at(journaled).digest == pack.digest
        hf.index.end_model_call(frame.id, journaled)


# every level


def test_a_floor_with_less_room_for_its_summary_is_rebuilt_as_it_was_shown(hf: Holdfast) -> None:
    with hf.frame("Work", limits=WIDE) as frame:
        frame.append([f"asked {nth} about the amber village and the long way there" for nth in range(60)])
        frame.attach("document", handle="low", body="words of evidence " * 40, priority="low")
        for budget in range(500, 1_000, 50):
            for floor in ("moderate", "aggressive"):
                pack = frame.pack(budget, min_compaction=floor)
                call = hf.index.begin_model_call(frame.id, pack)
                assert hf.index.pack_at(call).digest == pack.digest
                hf.index.end_model_call(frame.id, call)


def test_packs_of_every_level_fit_and_are_rebuilt_exactly() -> None:
    rng = seeded("levels")
    for _ in range(volume(6, 200)):
        with holdfast.open("memory:") as hf, world(hf, rng) as found:
            for floor in LEVELS:
                least = found.required(1, min_compaction=floor)
                pack = found.pack(least + rng.choice([0, 60, 200, 500, 2_000, PLENTY]), min_compaction=floor)
                assert list(size_problems(found, pack)) == []
                assert hf.index.pack_at(found.begin(pack)).digest == pack.digest


# planted bugs


def not_journaled(patch: pytest.MonkeyPatch) -> None:
    real = manifest._pack_drafts

    def drop(*given: Any) -> list[Any]:
        return [draft for draft in real(*given) if draft.type != "summary.made"]

    patch.setattr(manifest, "_pack_drafts", drop)


def made_anew_every_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowSummaries, "_load_last", lambda self, first: None)


def made_of_everything(patch: pytest.MonkeyPatch) -> None:
    def read_all(self: WindowSummaries, head: Any) -> Any:
        places = [*iter_places(self.env, self.thread, page=16)][::-1]
        at = next(at for at, place in enumerate(places) if place.key == head)
        return places[:at], load_messages(self.env, places[:at])

    patch.setattr(WindowSummaries, "_list_older", read_all)


def reported_without_work(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fit, "_SHOWN", lambda found: object())


def shown_wherever_the_window_begins(patch: pytest.MonkeyPatch) -> None:
    real = WindowSummaries._load_last

    def ignore(self: WindowSummaries, first: Any) -> Any:
        at = self.before
        return None if at is None else real(self, replace(first, stream=at.window_stream, version=at.window_start))

    patch.setattr(WindowSummaries, "_load_last", ignore)


def evidence_stays_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segments.ItemForms, "light_form", segments.ItemForms.whole_form)


def erasures_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifest, "has_erasure_since", lambda env, cursor: False)


PLANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None], tuple[Any, ...]]] = [
    (not_journaled, test_a_pack_is_rebuilt_with_the_words_of_its_summary, ()),
    (made_anew_every_time, test_the_same_summary_is_shown_until_the_window_moves, ({},)),
    (made_of_everything, test_making_a_summary_reads_no_more_of_a_longer_history, ()),
    (reported_without_work, test_a_level_that_did_nothing_is_not_reported, ("moderate",)),
    (shown_wherever_the_window_begins, test_a_summary_journaled_after_a_rewind_is_not_shown_again, ()),
    (evidence_stays_whole, test_level_light_shortens_evidence_as_it_does_messages, ()),
    (erasures_are_not_noticed, test_a_summary_made_before_an_erasure_is_not_journaled_after_it, ()),
]


@pytest.mark.parametrize(("plant", "test", "given"), PLANTS, ids=[plant.__name__ for plant, *_ in PLANTS])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[..., None],
    given: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as client:
        plant(monkeypatch)
        more = (tmp_path,) if "tmp_path" in test.__code__.co_varnames[: test.__code__.co_argcount] else ()
        with pytest.raises((AssertionError, NotFound, pytest.fail.Exception)):
            test(client, *given, *more)
