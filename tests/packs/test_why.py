"""`why` traces a fact through the packs: what each showed, where it left, what stands for it, and what helps."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, Session
from holdfast.core.packs.trace import Fact, FactVisibility
from holdfast.errors import InvalidValue
from holdfast.flow.packs import rebuild, trace_sources
from holdfast.flow.packs import trace as pack_trace
from holdfast.flow.packs.trace import PackInspector
from holdfast.types import Trace
from tests.packs.traced import Facts, by_fours, talk
from tests.scale import seeded, volume

NUTS = "allergic to nuts"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", tokenizer=by_fours) as client:
        yield client


@pytest.fixture
def chat(hf: Holdfast) -> Session:
    session = hf.session("alice", system="You are terse.", model="gpt-5-mini")
    session.append("My daughter is allergic to nuts.")
    return session


def shows(session: Session, text: str, budget: int = 400, **how: Any) -> bool:
    pack = session.pack(budget, **how)
    return text in str(pack.to_openai())


def run(fix: str, **names: Any) -> Any:
    """Do what a fix says: the first call that it names."""
    (code, *_) = re.findall(r"(?:session|hf|frame)\.\w+\((?:[^()]|\([^()]*\))*\)(?:\.\w+\([^()]*\))?", fix)
    return eval(code, names)


# where it was, and where it went


def test_a_fact_is_traced_from_where_it_was_said_to_the_pack_that_it_left_in(chat: Session) -> None:
    calls = talk(chat, 12)
    trace = chat.why(NUTS)
    assert trace.found == ("m2",)
    assert trace.said_at == chat.messages()[0].timestamp
    assert [one.call for one in trace.appearances] == calls
    states = [one.state for one in trace.appearances]
    gone = states.index("absent")
    assert states == ["shown"] * gone + ["absent"] * (12 - gone)
    assert 0 < gone < 12
    assert trace.left == trace.appearances[gone]
    assert (trace.left.call, trace.left.reason, trace.left.by) == (calls[gone], "older", None)
    assert trace.appearances[0].by == "m2"
    assert (trace.now, trace.covered_by, trace.note) == ("absent", None, None)


def test_the_fix_for_what_left_the_window_is_to_pin_it_and_then_it_is_back(chat: Session) -> None:
    talk(chat, 12)
    trace = chat.why(NUTS)
    assert not shows(chat, NUTS)
    run(trace.fix, session=chat)
    assert shows(chat, NUTS)
    after = chat.why(NUTS)
    assert (after.now, after.left) == ("shown", trace.left)
    assert "pinned" in after.fix


def test_the_budget_that_a_fix_names_shows_it_and_is_not_wildly_more_than_that_takes(chat: Session) -> None:
    talk(chat, 12)
    trace = chat.why(NUTS)
    (budget,) = map(int, re.findall(r"session\.pack\((\d+)\)", trace.fix))
    assert shows(chat, NUTS, budget)
    assert budget < 2 * chat.pack(100_000).tokens


def test_a_budget_beyond_the_model_is_not_advised(hf: Holdfast) -> None:
    holdfast.models.register_model("tiny-model", window=600, reply_reserve=100)
    chat = hf.session("small", model="tiny-model")
    chat.append(f"I am {NUTS}.")
    talk(chat, 20, 500)
    assert "session.pack(" not in chat.why(NUTS).fix


def test_a_summary_that_stands_for_it_is_named_and_pinning_brings_it_back(chat: Session) -> None:
    talk(chat, 4)
    chat.compact(keep=2, summarizer=lambda messages: "They spoke of this and that.")
    talk(chat, 2)
    trace = chat.why(NUTS)
    (summary,) = chat.compaction.summaries()
    name = f"s{summary.version}"
    assert [one.state for one in trace.appearances] == ["shown"] * 4 + ["summarised"] * 2
    assert trace.covered_by == name
    assert trace.left is not None
    assert (trace.left.by, trace.left.reason, trace.left.seen) == (name, "covered", False)
    assert trace.now == "summarised"
    assert name in trace.fix
    run(trace.fix, session=chat)
    assert shows(chat, NUTS)


def test_a_summary_that_repeats_it_keeps_it_in_sight(chat: Session) -> None:
    talk(chat, 4)
    chat.compact(keep=2, summarizer=lambda messages: f"The daughter is {NUTS}.")
    talk(chat, 2)
    trace = chat.why(NUTS)
    assert [(one.state, one.seen) for one in trace.appearances[-2:]] == [("summarised", True)] * 2
    assert (trace.left, trace.now) == (None, "summarised")
    assert trace.fix.startswith("Nothing:")
    assert trace.found[-1] == trace.covered_by


def test_a_summary_that_has_no_room_is_not_said_to_leave_it_out(chat: Session) -> None:
    chat.append("And so on. " * 400)
    talk(chat, 4)
    chat.compact(keep=2, summarizer=lambda messages: f"The daughter is {NUTS}. {'And so on. ' * 200}", max_tokens=2_000)
    trace = chat.why(NUTS)
    assert trace.now == "absent"
    assert "no room" in trace.fix


def test_what_was_cut_out_of_a_shown_message_is_not_called_shown(chat: Session) -> None:
    asked = chat.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
    chat.append_result(asked.tool_calls[0], f"{'x' * 3_000} the code is 7719 {'y' * 3_000}")
    call = chat.packs.begin_model_call(chat.pack(400))
    trace = chat.why("the code is 7719")
    (one,) = trace.appearances
    assert (one.call, one.state, one.seen, one.reason) == (call, "shortened", False, "cut")
    assert one.by == trace.found[0]
    assert trace.now == "shortened"
    assert f"expand {one.by}" in trace.fix
    assert shows(chat, "the code is 7719", int(re.findall(r"session\.pack\((\d+)\)", trace.fix)[0]))


def test_what_a_cut_left_in_is_shown(chat: Session) -> None:
    chat.append(f"The code is 7719. {'y' * 6_000}")
    chat.packs.begin_model_call(chat.pack(400))
    trace = chat.why("the code is 7719")
    assert [(one.state, one.seen) for one in trace.appearances] == [("shown", True)]
    assert trace.now == "shown"


def test_packs_of_other_roles_have_windows_of_their_own(chat: Session) -> None:
    talk(chat, 3, 2_000)
    chat.packs.begin_model_call(chat.pack(120, role="planner"))
    chat.packs.begin_model_call(chat.pack(2_000))
    trace = chat.why(NUTS)
    assert [one.role for one in trace.appearances][-2:] == ["planner", "main"]
    assert not trace.appearances[-2].seen
    assert trace.left is None


# where else it may stand


def test_what_stands_in_the_brief_is_in_every_pack(chat: Session) -> None:
    talk(chat, 12)
    trace = chat.why("you are TERSE")
    assert trace.found == ("brief",)
    assert {one.by for one in trace.appearances} == {"brief"}
    assert len(trace.appearances) == 12
    assert (trace.now, trace.said_at) == ("shown", None)


def test_evidence_of_a_live_frame_is_traced_through_its_packs(hf: Holdfast, chat: Session) -> None:
    with hf.frame("Plan", session="alice") as frame:
        name = frame.attach("document", body="The ferry leaves at nine.")
        calls = [hf.index.begin_model_call(frame.id, frame.pack(700, exclude=out)) for out in ([], [name])]
        trace = chat.why("ferry leaves at nine")
        assert trace.found == (name,)
        shown, left_out = trace.appearances
        assert (shown.call, shown.state, shown.by, shown.seen) == (calls[0], "recalled", name, True)
        assert (left_out.call, left_out.state, left_out.by, left_out.reason) == (calls[1], "absent", name, "excluded")
        assert (trace.left, trace.now) == (left_out, "recalled")
        for call in calls:
            hf.index.end_model_call(frame.id, call)
    gone = chat.why("ferry leaves at nine")
    assert (gone.found, gone.now) == ((name,), "absent")
    assert "no live frame" in gone.fix


def test_evidence_that_has_no_room_is_fixed_by_its_name(hf: Holdfast, chat: Session) -> None:
    with hf.frame("Plan", session="alice") as frame:
        for _ in range(2):
            frame.attach("document", body="word " * 170, priority="high")
        name = frame.attach("document", body=f"The ferry leaves at nine. {'boat ' * 150}", priority="low")
        call = hf.index.begin_model_call(frame.id, frame.pack(700))
        trace = chat.why("ferry leaves at nine")
        assert (trace.now, trace.appearances[-1].seen) == ("absent", False)
        assert "no room" in trace.fix
        assert "ferry leaves at nine" in str(run(trace.fix, frame=frame).to_openai())
        assert "ferry leaves at nine" in str(frame.pack(700, include=[name]).to_openai())
        hf.index.end_model_call(frame.id, call)


def test_what_was_compacted_into_the_state_is_found_and_recalled(chat: Session) -> None:
    talk(chat, 6)
    chat.compact(keep=2, summarizer=lambda messages: "They spoke.", store=True)
    talk(chat, 1)
    trace = chat.why(NUTS)
    assert any(name.startswith("holdfast/context/") for name in trace.found)
    chat.packs.begin_model_call(chat.pack(4_000, recall=3, query="who is allergic to nuts"))
    after = chat.why(NUTS)
    assert (after.appearances[-1].state, after.appearances[-1].seen) == ("recalled", True)


def test_a_goal_that_says_it_is_shown_by_the_breadcrumbs(hf: Holdfast, chat: Session) -> None:
    with hf.frame("Find a cake without hazelnuts", session="alice") as frame:
        call = hf.index.begin_model_call(frame.id, frame.pack(500))
        hf.index.end_model_call(frame.id, call)
        trace = chat.why("cake without hazelnuts")
    assert [one.by for one in trace.appearances] == ["breadcrumbs"]


# what cannot be shown


def test_a_fact_that_was_never_said_is_a_trace_that_says_so(chat: Session) -> None:
    talk(chat, 2)
    trace = chat.why("the moon is made of cheese")
    assert (trace.found, trace.appearances, trace.left, trace.now) == ((), (), None, "absent")
    assert "never said" in trace.fix
    near = chat.why("her nuts allergy")
    assert near.found == ()
    assert "Nearest is m2" in near.fix


def test_what_was_taken_back_says_so(chat: Session) -> None:
    kept = chat.messages()[-1]
    chat.append("The code is 7719.")
    talk(chat, 1)
    chat.rewind(to=kept)
    talk(chat, 1)
    trace = chat.why("code is 7719")
    assert [(one.state, one.reason) for one in trace.appearances] == [("shown", None), ("absent", "retracted")]
    assert "rewind" in trace.fix
    assert trace.covered_by is None


def test_what_was_said_before_a_reset_says_so(chat: Session) -> None:
    talk(chat, 1)
    chat.reset()
    chat.append("hello")
    talk(chat, 1)
    trace = chat.why(NUTS)
    assert [(one.state, one.reason) for one in trace.appearances] == [("shown", None), ("absent", "reset")]
    assert "was reset" in trace.fix


def test_what_was_erased_is_not_found_and_that_is_said(hf: Holdfast) -> None:
    chat = hf.as_user("zoe").session("zoes")
    chat.append("Zoe's secret is 7719.")
    talk(chat, 2)
    hf.journal.erase("zoe")
    trace = chat.why("secret is 7719")
    assert trace.found == ()
    assert "erased" in trace.fix
    assert "7719" not in trace.fix


def test_what_was_said_in_another_thread_is_found_there(chat: Session) -> None:
    branch = chat.fork(thread="b")
    branch.append("The code is 7719.")
    trace = chat.why("code is 7719")
    assert trace.appearances == ()
    assert "thread 'b'" in trace.fix
    assert shows(run_there(trace, chat), "code is 7719")


def run_there(trace: Trace, chat: Session) -> Session:
    (thread,) = re.findall(r"thread='(\w+)'\)", trace.fix)
    return Session(chat._env, chat.id, thread)


def test_what_a_branch_shares_is_pinned_where_it_was_said(hf: Holdfast, chat: Session) -> None:
    branch = chat.fork(thread="b")
    talk(branch, 12)
    trace = branch.why(NUTS)
    assert trace.left is not None
    assert not shows(branch, NUTS)
    run(trace.fix, hf=hf, session=branch)
    assert shows(branch, NUTS)


def test_a_closed_conversation_says_that_no_pack_comes(chat: Session) -> None:
    talk(chat, 12)
    chat.close()
    assert "ended" in chat.why(NUTS).fix


def test_a_pack_that_cannot_be_made_now_says_why(chat: Session) -> None:
    talk(chat, 2, 120)
    chat.packs.set_brief(system_prompt="You are terse. " * 60)
    trace = chat.why(NUTS)
    assert trace.now == "absent"
    assert "too small" in trace.fix


@pytest.mark.parametrize("text", ["", "   ", "\n\t", None, 7, ["nuts"], "\u0301"])
def test_a_question_without_words_is_refused(chat: Session, text: Any) -> None:
    with pytest.raises(InvalidValue):
        chat.why(text)


@pytest.mark.parametrize(
    "text", ["ALLERGIC   to\nnuts", "allérgic to nuts", "Allergic To Nuts.", "is allergic to nuts"]
)
def test_case_accents_and_blanks_do_not_matter(chat: Session, text: str) -> None:
    assert chat.why(text).found == ("m2",)


def test_a_text_of_any_kind_is_data(chat: Session) -> None:
    for text in ('" OR 1=1 --', "<data x>", "*", "{}", "\x00", "a" * 100_000, "😀", "%", "it's"):
        assert chat.why(text).found == (), text
    chat.append('so: " OR 1=1 --')
    assert len(chat.why('" OR 1=1 --').found) == 1


# however long it is


def test_beyond_what_is_read_the_index_knows_where_to_look(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(chat, 20)
    monkeypatch.setattr(trace_sources, "MAX_SCANNED", 8)
    trace = chat.why(NUTS)
    assert trace.found == ("m2",)
    assert trace.left is not None
    assert trace.note is not None
    assert "text index" in trace.note


def test_of_very_many_packs_the_newest_are_looked_at_and_that_is_said(
    chat: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = talk(chat, 12)
    monkeypatch.setattr(pack_trace, "MAX_PACKS", 5)
    trace = chat.why(NUTS)
    assert [one.call for one in trace.appearances] == calls[-5:]
    assert trace.note is not None
    assert "newest 5 packs" in trace.note


def test_what_several_packs_show_is_read_once(chat: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(chat, 3)
    chat.append(f"{'x' * 3_000} the code is 7719 {'y' * 3_000}", policy="pinned")
    talk(chat, 12)
    read: list[Any] = []
    original = rebuild.load_piece_messages
    monkeypatch.setattr(rebuild, "load_piece_messages", lambda *args: read.append(args[-1]) or original(*args))
    trace = chat.why("the code is 7719")
    assert {one.state for one in trace.appearances} == {"shortened"}
    assert len(trace.appearances) == 12
    cuts = [one.cut for one in read]
    assert len(cuts) == len(set(cuts)), "each form of it once"
    read.clear()
    chat.why(NUTS)
    assert read == [], "a manifest tells where nothing was cut"


def test_through_asyncio_it_is_the_same(hf: Holdfast, chat: Session) -> None:
    async def main() -> Trace:
        async with holdfast.open_async("memory:", tokenizer=by_fours) as other:
            there = await other.session("alice")
            await there.append("My daughter is allergic to nuts.")
            pack = await there.pack(400)
            await there.packs.begin_model_call(pack)
            assert [one.tokens for one in await there.packs.list()] == [pack.tokens]
            return await there.why(NUTS)

    trace = asyncio.run(main())
    assert (trace.now, len(trace.appearances)) == ("shown", 1)


# against what was really sent


CASES = {
    ("shown", None),
    ("shortened", "cut"),
    ("summarised", "covered"),
    ("summarised", "repeated"),
    ("absent", "older"),
    ("absent", "retracted"),
}


SEED = 6
"""A walk in which every case comes up soon."""


def walked(generator: random.Random, times: int, steps: int) -> set[tuple[str, str | None]]:
    """Somebody talks, several times over, and every trace is compared with what was sent."""
    seen: set[tuple[str, str | None]] = set()
    for _ in range(times):
        with holdfast.open("memory:", tokenizer=by_fours) as hf:
            walk = Facts(hf, generator)
            for _ in range(steps):
                walk.step()
            seen |= walk.check()
    return seen


def test_traces_say_of_every_pack_what_was_really_sent() -> None:
    assert walked(seeded("why"), volume(3, 120), 90)
    assert walked(random.Random(SEED), 2, 90) >= CASES, "every case came up"


def cut_is_called_shown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PackInspector, "_is_still_said", lambda self, piece, facts: True)


def cut_is_called_absent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PackInspector, "_is_still_said", lambda self, piece, facts: False)


def run_ends_one_early(patch: pytest.MonkeyPatch) -> None:
    original = PackInspector._look_at_run

    def _run(self: PackInspector, piece: Any, facts: Any) -> FactVisibility | None:
        return original(self, replace(piece, last=(piece.last or 1) - 1), facts)

    patch.setattr(PackInspector, "_look_at_run", _run)


def covered_is_called_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FactVisibility, "seen", property(lambda self: self.state in ("shown", "recalled", "summarised")))


def repeated_is_called_covered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FactVisibility, "seen", property(lambda self: self.state in ("shown", "recalled")))


def taken_back_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trace_sources, "is_standing", lambda row, segment: False)


def only_the_index_is_asked(patch: pytest.MonkeyPatch) -> None:
    """Words in a long tool output that the index does not know are missed."""
    patch.setattr(trace_sources, "MAX_SCANNED", 0)
    patch.setattr(trace_sources, "search_journal", lambda *args: [])


def brief_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PackInspector, "_look_at_brief", lambda self, facts: None)


def now_is_the_whole_line(patch: pytest.MonkeyPatch) -> None:
    original = pack_trace._repeat_request
    patch.setattr(pack_trace, "_repeat_request", lambda *args: replace(original(*args), budget=90_000))


@pytest.mark.parametrize(
    "plant",
    [
        cut_is_called_shown,
        cut_is_called_absent,
        run_ends_one_early,
        covered_is_called_repeated,
        repeated_is_called_covered,
        taken_back_is_forgotten,
        only_the_index_is_asked,
        brief_is_not_looked_at,
        now_is_the_whole_line,
    ],
)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        walked(random.Random(SEED), 8, 90)


def test_words_are_compared_plainly() -> None:
    fact = Fact.of("Crème  brûlée")
    assert fact.is_in(None, "x", "a CREME BRULEE for two")
    assert not fact.is_in("creme", "brulee")
