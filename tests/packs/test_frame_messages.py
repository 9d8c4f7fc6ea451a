"""What a frame sees: its own messages and nobody else's, what its work is part of, and evidence that it was given."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from bench.counting import counting
from holdfast import Holdfast
from holdfast.errors import FrameEnded, FrameNotFound, InvalidMessage, InvalidValue, KeyReused, SessionNotFound
from holdfast.flow.frames import read as frame_read
from holdfast.flow.packs import pack, visibility
from holdfast.flow.sessions import append
from holdfast.flow.sessions.append import MessagePreparer
from holdfast.flow.sessions.read import thread_state
from holdfast.records.scope import Scope
from holdfast.testing.clock import FrozenClock
from tests.backends import check_rebuilt
from tests.scale import seeded, volume

ACTOR = "actor/main"
WITHIN = "actor/main/session/s/thread/main"


@pytest.fixture
def clock() -> FrozenClock:
    """Time that passes when it is told to."""
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite", "sqlite without cache"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Holdfast]:
    """A client; whatever a test did with it, the journal verifies and is the same when it is made anew."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    settings = holdfast.Settings(cached_streams=0) if "without" in request.param else None
    with holdfast.open(url, clock=clock, settings=settings) as client:
        yield client
        check_rebuilt(client)


def texts(messages: list[holdfast.Message]) -> list[str]:
    return [message.text for message in messages]


def types(hf: Holdfast, stream: str) -> list[str]:
    return [event.type for event in hf.journal.events(stream)]


def everywhere(holds: Callable[[Holdfast, random.Random], None]) -> None:
    """Try it in several worlds."""
    for seed in range(10):
        with holdfast.open("memory:") as hf:
            holds(hf, random.Random(seed))


# whose line it is


def test_a_root_within_a_session_speaks_in_the_session_and_a_child_in_a_line_of_its_own(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("Plan my trip.")
    with hf.frame("Plan", session="s") as root:
        root.append({"role": "assistant", "content": "I shall look."})
        assert texts(root.messages()) == ["Plan my trip.", "I shall look."]
        with root.frame("Find flights") as child:
            assert child.messages() == []
            said = child.append(["Which flights?", {"role": "assistant", "content": "Two."}])
            assert [message.stream for message in said] == [f"frame/{child.id}"] * 2
            assert texts(child.messages()) == ["Which flights?", "Two."]
            assert child.messages(1) == said[1:]
        assert texts(root.messages()) == texts(chat.messages()) == ["Plan my trip.", "I shall look."]
        with root.frame("Find hotels") as other:
            assert other.messages() == []
    assert types(hf, f"frame/{child.id}") == ["thread.opened", "message.appended", "message.appended"]
    assert types(hf, f"frame/{other.id}") == []


def test_a_root_without_a_session_has_a_line_of_its_own(hf: Holdfast) -> None:
    with hf.frame("Alone") as one, hf.frame("Beside", actor="other") as two:
        one.append("mine")
        assert texts(one.messages()) == ["mine"]
        assert two.messages() == []
        assert frame_read.frame_thread(hf.env, one.id) == f"frame/{one.id}"


def test_what_a_root_says_in_a_session_that_nobody_opened_is_refused(hf: Holdfast) -> None:
    with hf.frame("Early", session="later") as root:
        with pytest.raises(SessionNotFound):
            root.append("hello")
        assert root.messages() == []
        hf.session("later").append("Now.")
        assert texts(root.messages()) == ["Now."]


def test_a_session_that_nobody_opened_is_an_empty_conversation_to_a_frame(hf: Holdfast) -> None:
    with hf.frame("Early", session="later", key="k") as root:
        early = root.pack()
        assert "Early" in str(early.messages)
        assert early.conversation.message_count == 0
        assert root.pack(recall=2, query="words").digest == root.pack(recall=2).digest == early.digest
        call = hf.index.begin_model_call(root.id, pack=early)
        assert hf.index.pack_at(call).digest == early.digest
        hf.index.end_model_call(root.id, call, usage=3)
        again = root.pack()
        assert again.digest == early.digest
        with pytest.raises(SessionNotFound):
            root.append("hello")
        chat = hf.session("later", model="gpt-4o")
        chat.append("Now.")
        assert "Now." in str(root.pack().messages)
    assert hf.index.get_frame(root.id).status == "completed"
    assert chat.pack().conversation.message_count == 1
    assert hf.journal.verify(packs=True).findings == ()


def test_a_planted_pack_that_wants_the_session_of_a_frame_is_found(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pack.load_current_state

    def load(env: Any, stream: str) -> Any:
        if stream.startswith("session/"):
            thread_state(env, stream)  # It refuses a missing session.
        return real(env, stream)

    monkeypatch.setattr(pack, "load_current_state", load)
    with pytest.raises(SessionNotFound):
        test_a_session_that_nobody_opened_is_an_empty_conversation_to_a_frame(hf)
    with pytest.raises(FrameEnded), hf.frame("Early", session="later", key="k") as again:
        again.append("hello")  # Its key is burnt: the frame has failed for good.


def test_tokens_are_counted_as_the_session_counts_them(hf: Holdfast) -> None:
    hf.session("s", model="gpt-4o", tokenizer="cl100k_base")
    wanted = hf.session("s").append("The same words.")
    with hf.frame("Work", session="s") as root, root.frame("Below") as child:
        said = child.append("The same words.")
        assert (said.tokens, said.tokenizer) == (wanted.tokens, wanted.tokenizer)
    with hf.frame("Alone") as alone:
        assert alone.append("The same words.").tokenizer != wanted.tokenizer


def test_messages_are_checked_and_calls_wait_for_their_results(hf: Holdfast) -> None:
    with hf.frame("Work") as frame:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        frame.append({"role": "assistant", "content": None, "tool_calls": [call]})
        with pytest.raises(holdfast.errors.ToolPairingError):
            frame.append({"role": "tool", "tool_call_id": "c2", "content": "?"})
        frame.append({"role": "tool", "tool_call_id": "c1", "content": "seen"}, policy="pinned")
        frame.append("With a file.", files=[("a.txt", b"text")], partial=False)
        wrongs: list[Any] = [[], "", 7, {"no": "role"}]
        for wrong in wrongs:
            with pytest.raises(InvalidMessage):
                frame.append(wrong)
        for limit in (-1, True, "1"):
            with pytest.raises(InvalidValue):
                frame.messages(limit)  # type: ignore[arg-type]
        assert [message.role for message in frame.messages()] == ["assistant", "tool", "user"]
        assert [message.pinned for message in frame.messages()] == [False, True, False]
        assert frame.messages(0) == []


# only while it is live


def test_nothing_is_said_after_the_end_and_everything_can_be_read(hf: Holdfast) -> None:
    with hf.frame("Work", key="w") as frame:
        first = frame.append("once", key="a")
        assert frame.append("once", key="a") == first
        with pytest.raises(KeyReused):
            frame.append("twice", key="a")
    before = types(hf, f"frame/{frame.id}")
    with pytest.raises(FrameEnded):
        frame.append("too late")
    assert types(hf, f"frame/{frame.id}") == before
    with hf.frame("Work", key="w") as again:  # The same code, run again: what it said is remembered.
        assert again.append("once", key="a") == first
        assert again.messages() == [first]
        with pytest.raises(FrameEnded):
            again.append("more", key="b")


def test_a_frame_that_another_process_ended_says_nothing_more(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "a.db") as two:
        frame = one.index.push_frame("Work", scope=ACTOR)
        append.append_frame_messages(one.env, frame, [holdfast.Message(role="user", content="hello")])
        two.index.pop_frame(frame)
        with pytest.raises(FrameEnded):
            append.append_frame_messages(one.env, frame, [holdfast.Message(role="user", content="still there?")])
        assert texts(append.read_frame_messages(two.env, frame)) == ["hello"]


def test_saying_and_ending_at_once_leaves_no_message_behind_the_end(tmp_path: Path) -> None:
    """The frame is looked at where the message is decided, not before."""
    with holdfast.open(tmp_path / "a.db") as hf:
        frame = hf.index.push_frame("Work", scope=ACTOR)
        real = MessagePreparer.prepare

        def meanwhile(self: Any, *given: Any, **how: Any) -> Any:
            hf.index.pop_frame(frame)
            return real(self, *given, **how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MessagePreparer, "prepare", meanwhile)
            with pytest.raises(FrameEnded):
                append.append_frame_messages(hf.env, frame, [holdfast.Message(role="user", content="late")])
        assert types(hf, f"frame/{frame}") == []


def test_the_same_through_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            chat = await hf.session("s", system="Be kind.")
            await chat.packs.set_brief("planner", invariants=["Plan."])
            assert (await chat.packs.brief("planner")).invariants == ("Plan.",)
            async with hf.frame("Work", session="s") as root:
                note = await root.attach("document", body="a")
                await root.append("to the session")
                async with root.frame("Below", inherit=[note]) as child:
                    said = await child.append(["one", "two"], key="k")
                    assert await child.messages() == said
                    assert [handle.body for handle in await hf.index.handles(child.id)] == ["a"]
            assert texts(await root.messages(1)) == ["to the session"]

    asyncio.run(main())


def test_a_missing_check_would_be_seen(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "check_live", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_nothing_is_said_after_the_end_and_everything_can_be_read(hf)


def test_unknown_frames_see_nothing(hf: Holdfast) -> None:
    env = hf.env
    frame = hf.index.push_frame("Work", scope=ACTOR)
    unknown = "01JY0000000000000000000000"
    for ask in (
        visibility.frame_visibility,
        visibility.load_breadcrumbs,
        frame_read.frame_thread,
        append.read_frame_messages,
    ):
        with pytest.raises(FrameNotFound):
            ask(env, unknown)
        with pytest.raises(FrameNotFound):
            ask(replace(env, tenant="other"), frame)
        with pytest.raises(InvalidValue):
            ask(env, "nonsense")
    hf.index.pop_frame(frame)
    with pytest.raises(FrameEnded):
        visibility.frame_visibility(env, frame)


# lines of frames are no sessions


def test_lines_of_frames_are_not_among_the_sessions(hf: Holdfast, clock: FrozenClock) -> None:
    hf.session("s", idle_timeout=60).append("hello")
    with hf.frame("Work", session="s") as root, root.frame("Below") as child:
        child.append({"role": "assistant", "content": "private", "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
        clock.advance(61_000)
        child.append("much later")
    assert [(one.id, one.messages, one.threads) for one in hf.sessions()] == [("s", 1, 1)]
    assert hf.session("s").usage.input == 0
    assert hf.session("s").details.threads == ("main",)
    assert hf.sweep_sessions().ended == 1  # Quiet for as long as it said, whatever a frame said in private.
    assert texts(child.messages()) == ["private", "much later"]
    assert list(hf.tenant("other").sessions()) == []


def test_what_a_user_said_to_a_frame_is_erased_with_the_user(hf: Holdfast) -> None:
    mine = hf.as_user("ann")
    with mine.frame("For Ann") as root, root.frame("Below") as child:
        child.append("My secret.")
        child.append("x" * 300_000)
        hf.journal.erase("ann")
        assert texts(child.messages()) == ["[erased]", "[erased]"]
        child.append("What now?")
        crumbs = visibility.load_breadcrumbs(hf.env, child.id)
        assert [crumb.goal for crumb, _ in crumbs] == ["[erased]", "[erased]"]
        assert [visibility.reload_breadcrumb(hf.env, at) for _, at in crumbs] == [("[erased]", True)] * 2


def test_an_exported_journal_has_the_lines_of_frames(hf: Holdfast, tmp_path: Path) -> None:
    with hf.frame("Work") as frame:
        frame.append("private")
    hf.journal.export(tmp_path / "all.jsonl")
    with holdfast.open("memory:") as other:
        other.journal.import_(tmp_path / "all.jsonl")
        assert texts(append.read_frame_messages(other.env, frame.id)) == ["private"]


def test_the_cost_of_saying_something_does_not_follow_what_was_said(tmp_path: Path) -> None:
    url = tmp_path / "a.db"
    with holdfast.open(url, durability="fast") as hf, hf.frame("Work") as root, root.frame("Below") as child:

        def cost() -> tuple[float, float]:
            with counting(hf.env.journal) as counts:
                child.append("A message like any other.")
            return counts.statements, counts.calls

        child.append(["first", "second"])
        few = cost()
        child.append(["more"] * volume(300, 5_000))
        assert cost() == few


# isolation, in any tree


def grown(hf: Holdfast, chance: random.Random) -> dict[str, list[str]]:
    """A tree of frames in several streams, each of which says something; gives what each said in its own line."""
    hf.session("s").append("said in the session")
    said: dict[str, list[str]] = {}
    homes = [WITHIN, ACTOR, "actor/other/session/t/thread/main"]
    known: list[str] = []
    for number in range(chance.randint(2, 9)):
        parent = chance.choice([None, *known]) if known else None
        scope = chance.choice(homes if parent is None else [None, *homes])
        limits = holdfast.Limits(depth=10)
        frame = hf.index.push_frame(f"work {number}", scope=scope, parent=parent, limits=limits)
        known.append(frame)
        own = parent is not None or scope == ACTOR
        for word in range(chance.randint(0, 3) if own or scope == WITHIN else 0):
            text = f"{frame} says {word}"
            append.append_frame_messages(hf.env, frame, [holdfast.Message(role="user", content=text)])
            said.setdefault(frame, []).append(text)
        if own:
            said.setdefault(frame, [])
    return said


def isolated(hf: Holdfast, chance: random.Random) -> None:
    """Whatever the tree, a frame sees its own words, and no child those of a session or of another frame."""
    said = grown(hf, chance)
    for frame, own in said.items():
        info = hf.index.get_frame(frame)
        seen = visibility.frame_visibility(hf.env, frame)
        read = texts(append.read_frame_messages(hf.env, frame))
        if info.parent is None and info.scope == WITHIN:
            assert seen.thread == "session/s/thread/main"
            assert set(own) <= set(read)
            assert not any(
                "says" in text and text.split(maxsplit=1)[0] in said and _is_child(hf, text) for text in read
            )
        else:
            assert seen.thread == Scope.frame(frame).text
            assert read == own
        crumbs = visibility.load_breadcrumbs(hf.env, frame)
        line = hf.index.ancestry(frame)
        assert [(crumb.frame_id, crumb.goal, crumb.status) for crumb, _ in crumbs] == [
            (one.id, one.goal, one.status) for one in line
        ]


def _is_child(hf: Holdfast, text: str) -> bool:
    return hf.index.get_frame(text.split(maxsplit=1)[0]).parent is not None


def test_no_frame_sees_what_was_said_above_or_beside_it() -> None:
    chance = seeded("isolation")
    for _ in range(volume(15, 400)):
        with holdfast.open("memory:") as hf:
            isolated(hf, random.Random(chance.randrange(2**32)))


def test_a_child_that_saw_the_session_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = frame_read.FramePlace.thread.fget  # type: ignore[attr-defined]
    leaky = property(lambda place: real(replace(place, parent=None)))
    monkeypatch.setattr(frame_read.FramePlace, "thread", leaky)
    with pytest.raises((AssertionError, SessionNotFound)):
        everywhere(isolated)


# where it looks


def test_briefs_are_looked_up_at_the_actor_then_the_session_then_everywhere(hf: Holdfast) -> None:
    env = hf.env
    root = hf.index.push_frame("Work", scope=WITHIN)
    child = hf.index.push_frame("Below", parent=root)
    away = hf.index.push_frame("Away", parent=root, scope="actor/far")
    alone = hf.index.push_frame("Alone", scope=ACTOR)
    seen = {frame: visibility.frame_visibility(env, frame) for frame in (root, child, away, alone)}
    assert seen[root].scopes == seen[child].scopes == (WITHIN, "actor/main", "session/s", "global")
    assert (seen[root].session, seen[child].session, seen[away].session) == ("session/s", "session/s", None)
    assert (seen[away].actor, seen[away].scopes) == ("actor/far", ("actor/far", "global"))
    assert seen[alone].scopes == (ACTOR, "global")
    assert seen[child].frame == hf.index.get_frame(child)
    chat = visibility.thread_visibility("session/s/thread/main")
    assert (chat.session, chat.actor, chat.frame, chat.scopes) == ("session/s", None, None, ("session/s", "global"))


def test_the_top_of_a_stack_is_its_deepest_live_frame(hf: Holdfast) -> None:
    env = hf.env
    with pytest.raises(FrameNotFound, match="No active frame"):
        visibility.top_frame(env, ACTOR)
    root = hf.index.push_frame("Work", scope=ACTOR)
    child = hf.index.push_frame("Below", parent=root)
    assert visibility.top_frame(env, ACTOR) == child
    hf.index.pop_frame(child)
    assert visibility.top_frame(env, Scope.actor("main")) == root


def test_a_breadcrumb_is_read_again_as_it_was_shown(hf: Holdfast) -> None:
    env = hf.env
    root = hf.index.push_frame("Work", scope=ACTOR)
    child = hf.index.push_frame("Below", parent=root, scope="actor/far")
    (_, above), (crumb, own) = visibility.load_breadcrumbs(env, child)
    assert (above.stream, own.stream, crumb.depth, crumb.status) == (ACTOR, "actor/far", 1, "active")
    hf.index.update_frame(root, goal="Other work")
    assert visibility.reload_breadcrumb(env, above) == ("Work", False)
    (changed, _), _ = visibility.load_breadcrumbs(env, child)
    assert changed.goal == "Other work"
    hf.index.pop_frame(root, "cancelled")
    assert [crumb.status for crumb, _ in visibility.load_breadcrumbs(env, child)] == [
        "cancelled",
        "cancelled",
    ]
