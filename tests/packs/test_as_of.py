"""The journal as it was at a cursor: what was seen when it stood there is seen again, and nothing can be changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Settings
from holdfast.errors import InvalidValue, NotFound, ReadOnly
from holdfast.flow.packs import past as past_flow
from holdfast.flow.packs.past import PastJournal
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.ports.capabilities import ArtifactKeeper, EntryReader, FileBackup, Maintainer, TextSearcher, VectorKeeper
from holdfast.ports.journal import Journal
from holdfast.records.reports import EventQuery
from holdfast.testing.clock import FrozenClock
from tests.packs.past_kit import Walk, back, line, recorded, seen, shorter
from tests.scale import volume

BACKENDS = ("memory", "sqlite")


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=BACKENDS)
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(
        url,
        clock=clock,
        tokenizer=len,
        summarizer=shorter,
        durability="fast",
        settings=Settings(inline_text_bytes=200, inline_artifact_bytes=100),
    ) as client:
        yield client


def test_what_was_seen_when_the_journal_stood_at_a_cursor_is_seen_again(hf: Holdfast, clock: FrozenClock) -> None:
    walk = Walk(hf, clock, "as of")
    walk.everything_once()
    known = recorded(walk, volume(100, 2_000), every=volume(5, 40))
    assert len(known) >= 10
    for cursor, before in known.items():
        assert seen(back(hf, cursor)) == before, f"at {cursor}"
    hf.state("user/1").write("last", 1)  # Time stands at the last event, and the clock may have moved on since.
    assert seen(back(hf, hf.env.journal.position())) == seen(hf)


def test_every_cursor_can_be_gone_back_to_also_inside_an_append(hf: Holdfast, clock: FrozenClock) -> None:
    walk = Walk(hf, clock, "every cursor")
    for _ in range(30):
        walk.step()
    live = list(hf.journal.events())
    for cursor in range(0, hf.env.journal.position() + 1, 3):
        then = back(hf, cursor)
        assert then.env.journal.position() == cursor
        assert list(then.journal.events()) == [event for event in live if event.seq <= cursor]
        # Others' events are missing, and that is all: every chain and every row is right.
        assert {finding.kind for finding in then.journal.verify().findings} <= {"events"}
        seen(then)


def test_nothing_of_other_tenants_is_held(hf: Holdfast) -> None:
    for client in (hf.as_user("me"), hf.tenant("other").as_user("them")):
        chat = client.session("s")
        chat.append("mine, and long enough to be an artifact of its own " * 10)
        client.state("custom/notes/id/x").write("p", "x")
    held = back(hf, hf.env.journal.position()).env.journal
    assert held.tenants() == ["default"]
    assert {event.tenant for event in _all(held)} == {"default"}
    assert [subject.name for subject in held.subjects("default")] == ["me"]
    assert held.subjects("other") == []
    theirs = [artifact.name for tenant, artifact in hf.env.journal.artifacts() if tenant == "other"]
    assert len(theirs) == 1
    for tenant in ("default", "other"):
        with pytest.raises(NotFound):
            held.artifact(tenant, theirs[0])
    assert [tenant for tenant, _ in held.artifacts()] == ["default"]


def _all(journal: Journal) -> list[Any]:
    return [event for name in ("default", "other") for event in journal.read(EventQuery(tenant=name, limit=10_000))]


def test_only_people_and_artifacts_of_then_are_known(hf: Holdfast) -> None:
    hf.as_user("first").session("s").append("early")
    cursor = hf.env.journal.position()
    hf.as_user("second").session("s").append("late and long " * 40)
    held = back(hf, cursor).env.journal
    assert [subject.name for subject in held.subjects("default")] == ["first"]
    assert list(held.artifacts()) == []


def test_what_was_erased_since_stays_erased(hf: Holdfast) -> None:
    chat = hf.as_user("ann").session("s")
    chat.append("my secret")
    chat.append("a long secret " * 40)
    hf.as_user("ann").state("custom/notes/id/x").write("p", "secret")
    cursor = hf.env.journal.position()
    hf.journal.erase("ann")
    then = back(hf, cursor)
    assert [(one.text, one.erased) for one in line(then, "s").messages()] == [("[erased]", True)] * 2
    assert then.state("custom/notes/id/x").read("p") is None
    assert "secret" not in str(list(then.journal.events()))
    assert [subject.name for subject in then.env.journal.subjects("default")] == [None]
    assert line(then, "s").search("secret") == []
    assert then.journal.verify().findings == ()


def test_bodies_of_artifacts_are_read_only_when_they_are_asked_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.session("s")
    long = "a long text " * 100
    for _ in range(3):
        chat.append(long)
    asked: list[bytes] = []
    journal = hf.env.journal
    read = journal.artifact
    monkeypatch.setattr(type(journal), "artifact", lambda _, tenant, name: asked.append(name) or read(tenant, name))
    then = back(hf, journal.position())
    assert asked == []
    assert line(then, "s").messages(1)[0].text == long
    assert len(asked) == 1


def test_time_stands_still_at_the_cursor(hf: Holdfast, clock: FrozenClock) -> None:
    hf.state("user/1").write("p", "soon gone", ttl=10)
    clock.advance(9_999)
    hf.session("s").append("still there")
    cursor = hf.env.journal.position()
    clock.advance(3_600_000)
    assert hf.state("user/1").read("p") is None
    assert back(hf, cursor).state("user/1").read("p") == "soon gone"
    hf.session("s").append("an hour later")
    assert back(hf, hf.env.journal.position()).state("user/1").read("p") is None


def test_searching_the_past_finds_what_stood_then(hf: Holdfast) -> None:
    chat = hf.session("s")
    first = chat.append("the red ferry leaves at nine")
    wrong = chat.append("the blue ferry leaves at ten")
    cursor = hf.env.journal.position()
    live = [(one.key, one.score) for one in chat.search("ferry leaves")]
    chat.rewind(to=first)
    chat.append("the green ferry leaves at noon")
    then = line(back(hf, cursor), "s")
    assert [(one.key, one.score) for one in then.search("ferry leaves")] == live
    assert {one.key for one in then.search("ferry")} == {first.id, wrong.id}
    now = line(back(hf, hf.env.journal.position()), "s")
    assert wrong.id not in {one.key for one in now.search("blue ferry")}


def test_a_journal_without_an_index_is_held_without_one(tmp_path: Path) -> None:
    with holdfast.open("memory:", settings=Settings(index_text=0)) as client:
        client.session("s").append("words")
        assert line(back(client, client.env.journal.position()), "s").search("words") == []


WRITES: dict[str, Callable[[Holdfast], object]] = {
    "say": lambda then: line(then, "s").append("x"),
    "rewind": lambda then: line(then, "s").rewind(to=line(then, "s").messages()[0]),
    "fork": lambda then: line(then, "s").fork(),
    "compact": lambda then: line(then, "s").compact(0, summarizer=shorter),
    "reset": lambda then: line(then, "s").reset(),
    "open": lambda then: then.session("new"),
    "push": lambda then: then.index.push_frame("goal", scope="actor/main"),
    "write": lambda then: then.state("user/1").write("p", 1),
    "erase": lambda then: then.journal.erase("ann"),
    "rebuild": lambda then: then.journal.rebuild(),
    "artifact": lambda then: line(then, "s").append("long " * 100),
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_can_be_written_to_the_past(hf: Holdfast, name: str) -> None:
    chat = hf.as_user("ann").session("s")
    chat.append("one")
    chat.append("two")
    before = hf.env.journal.position()
    then = back(hf, before)
    with pytest.raises(ReadOnly, match="as it was"):
        WRITES[name](then)
    assert then.env.journal.position() == before
    assert hf.env.journal.position() == before
    assert seen(then) == seen(hf)


def test_the_past_has_no_caches_and_reaches_nothing_outside(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("x")
    cursor = hf.env.journal.position()
    hf.state("user/1").write("p", "only now", lifetime="transient")
    env = back(hf, cursor).env
    for name in ("states", "leases", "observers", "transients", "vectors", "sinks", "journal"):
        assert getattr(env, name) is not getattr(hf.env, name), name
    assert (env.memory, env.summarizer, env.fetcher, env.recent) == (None, None, None, None)
    assert env.rules == {}
    assert (env.ids, env.settings, env.models) == (hf.env.ids, hf.env.settings, hf.env.models)
    assert back(hf, cursor).state("user/1").read("p") is None
    hf.on("*", lambda _: pytest.fail("a look at the past told somebody something"))
    seen(back(hf, cursor))


@pytest.mark.parametrize("wrong", [-1, 1_000, 2**70, 1.0, "1", True, None])
def test_a_cursor_that_was_never_reached_is_refused_with_the_largest_one(hf: Holdfast, wrong: Any) -> None:
    hf.session("s").append("x")
    with pytest.raises(InvalidValue, match=f"from 0 to {hf.env.journal.position()}, which is now"):
        back(hf, wrong)


def test_before_anything_happened_there_is_nothing(hf: Holdfast) -> None:
    hf.session("s").append("x")
    assert seen(back(hf, 0)) == {"sessions": [], "stacks": [], "questions": []}


def test_the_past_of_the_past_can_be_looked_at(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("one")
    first = hf.env.journal.position()
    chat.append("two")
    then = back(hf, hf.env.journal.position())
    chat.append("three")
    assert [one.text for one in line(back(then, first), "s").messages()] == ["one"]
    with pytest.raises(InvalidValue):
        back(then, hf.env.journal.position())


def test_every_operation_of_a_journal_is_answered_or_refused() -> None:
    ports = (Journal, EntryReader, TextSearcher, VectorKeeper, ArtifactKeeper, Maintainer, FileBackup)
    named = {name for port in ports for name, _ in inspect.getmembers(port) if not name.startswith("_")}
    own = {name for name in vars(PastJournal) if not name.startswith("_")}
    assert {*past_flow._READ_METHODS, *past_flow._WRITE_METHODS, *own} == named
    assert not {*past_flow._READ_METHODS} & {*past_flow._WRITE_METHODS, *own}


def test_a_copy_with_a_gap_is_still_refused_where_a_journal_is_to_go_on(hf: Holdfast) -> None:
    hf.session("s").append("x")
    events = _all(hf.env.journal)
    with pytest.raises(holdfast.Refused, match="has a gap"):
        MemoryJournal().restore(hf.env.journal.secret, [("default", event) for event in events[1:]])


def _holds_everything(patch: pytest.MonkeyPatch) -> None:
    """Events after the cursor are held as well."""
    events = past_flow._TenantCopy._read_events

    def later(self: Any) -> Any:
        self._until = None
        return events(self)

    patch.setattr(past_flow._TenantCopy, "_read_events", later)


def _time_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Entries that were there then have expired since."""
    over = past_flow._replace_journal
    patch.setattr(past_flow, "_replace_journal", lambda env, journal, clock: over(env, journal, env.clock))


def _loses_retractions(patch: pytest.MonkeyPatch) -> None:
    """Rows are not made from every event."""
    project = MemoryJournal._project

    def some(self: Any, event: Any, facts: Any) -> None:
        if event.type != "message.retracted":
            project(self, event, facts)

    patch.setattr(MemoryJournal, "_project", some)


PLANTED = (_holds_everything, _time_goes_on, _loses_retractions)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__.strip("_"))
def test_a_planted_bug_is_noticed(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    clock = FrozenClock()
    with holdfast.open(str(tmp_path / "a.db"), clock=clock, tokenizer=len, durability="fast") as client:
        chat = client.session("s")
        first = chat.append("one")
        chat.append("two")
        chat.rewind(to=first)
        client.state("user/1").write("p", 1, ttl=10)
        cursor, before = client.env.journal.position(), seen(client)
        clock.advance(60_000)
        chat.append("three")
        assert seen(back(client, cursor)) == before
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            assert seen(back(client, cursor)) != before
