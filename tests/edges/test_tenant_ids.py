"""Another tenant's ids, tokens and names open nothing: one is told the same as about ids that never were."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Holdfast
from holdfast.effects import Custom, Delegate, Handoff, OperatorOutput, RequestApproval
from holdfast.errors import NotFound, ToolPairingError
from holdfast.journal.memory import tables as memory_tables
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.ids import ulid_text
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.edges.tenant_actor import ULID
from tests.edges.tenant_calls import OWNERS

ACTOR = "actor/main"


class Things(msgspec.Struct, frozen=True, kw_only=True):
    """One name of each kind."""

    frame: str
    waiting: str
    question: str
    token: str
    call: str
    pack: str
    handle: str
    removal: str
    message: str
    said_call: str
    summary: str
    effect: str
    approval: str
    artifact: str
    session: str
    thread: str


def declare(hf: Holdfast, *effects: Any) -> list[str]:
    done = hf.effects.operate(lambda given, view: OperatorOutput(None, effects), name="test")
    return [one.effect for one in done.outcomes]


def made_by(hf: Holdfast) -> Things:
    """Something of each kind, all of it alive."""
    index = hf.index
    frame, waiting = index.push_frame("g", scope=ACTOR, tokens=100), index.push_frame("w", scope=ACTOR)
    asked = index.suspend_frame(waiting, "May I?", token=True)
    assert asked.token
    index.reserve(frame, "p", 5)
    handle = index.add_handle(frame, "document", body="b")
    removal = index.remove_handle(frame, index.add_handle(frame, "document", body="c"))
    session = hf.session("s")
    first = session.append(["one", "two", "three"])[0]
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    summary = session.compact(keep=1)
    assert summary is not None
    assert removal is not None
    said = session.append({"role": "assistant", "tool_calls": [call]})
    effect, approval = declare(hf, Custom("n", 1, sink="far"), Custom("n", 1, sink="far", needs_approval=True))
    hf.journal.append("global", "app.noted", files=[b"body"])
    (noted,) = hf.journal.events("global", types=["app.noted"])
    return Things(
        frame=frame,
        waiting=waiting,
        question=asked.question,
        token=asked.token,
        call=index.begin_tool_call(frame, "look"),
        pack=hf.session("s").packs.begin_model_call(hf.session("s").pack(1_000)),
        handle=handle,
        removal=removal,
        message=first.id,
        said_call=said.tool_calls[0].id,
        summary=summary.id,
        effect=effect,
        approval=approval,
        artifact=noted.facts.artifacts[0],
        session=hf.new_session().id,
        thread=session.fork().thread,
    )


def never_made() -> Things:
    """Names of the same shape that nobody has."""
    ids = SeededIds(FrozenClock(), 7)
    fresh = {name: ulid_text(ids.ulid()) for name in Things.__struct_fields__}
    names = {"token": secrets.token_urlsafe(32), "artifact": "ab" * 32, "session": "nobody", "thread": "nowhere"}
    return Things(**{**fresh, **names})


Ask = Callable[[Holdfast, Things, Things], Any]
"""A view asks with somebody's things; its own are there for what must be right besides."""

ASKS: dict[str, Ask] = {
    "index.push_frame parent": lambda hf, of, own: hf.index.push_frame("g", parent=of.frame),
    "index.update_frame frame": lambda hf, of, own: hf.index.update_frame(of.frame, goal="mine"),
    "index.pop_frame frame": lambda hf, of, own: hf.index.pop_frame(of.frame),
    "index.get_frame frame": lambda hf, of, own: hf.index.get_frame(of.frame),
    "index.ancestry frame": lambda hf, of, own: hf.index.ancestry(of.frame),
    "index.reserve frame": lambda hf, of, own: hf.index.reserve(of.frame, "p", 1),
    "index.release_reservation frame": lambda hf, of, own: hf.index.release_reservation(of.frame, "p"),
    "index.spend_reserved frame": lambda hf, of, own: hf.index.spend_reserved(of.frame, "p", 1),
    "index.record_usage frame": lambda hf, of, own: hf.index.record_usage(of.frame, 1),
    "index.add_handle frame": lambda hf, of, own: hf.index.add_handle(of.frame, "document"),
    "index.add_handle call": lambda hf, of, own: hf.index.add_handle(own.frame, "document", call=of.call),
    "index.add_handle handle": lambda hf, of, own: hf.index.add_handle(own.frame, "document", handle=of.handle),
    "index.remove_handle frame": lambda hf, of, own: hf.index.remove_handle(of.frame, own.handle),
    "index.remove_handle handle": lambda hf, of, own: hf.index.remove_handle(own.frame, of.handle),
    "index.compact_context frame": lambda hf, of, own: hf.index.compact_context(of.frame, 0),
    "index.restore_handles frame": lambda hf, of, own: hf.index.restore_handles(of.frame, own.removal),
    "index.restore_handles removal": lambda hf, of, own: hf.index.restore_handles(own.frame, of.removal),
    "index.handles frame": lambda hf, of, own: hf.index.handles(of.frame),
    "index.results frame": lambda hf, of, own: hf.index.results(of.frame),
    "index.add_result frame": lambda hf, of, own: hf.index.add_result(of.frame, "artifact", "x"),
    "index.assemble_context_pack frame": lambda hf, of, own: hf.index.assemble_context_pack(frame=of.frame),
    "index.pack_at call": lambda hf, of, own: hf.index.pack_at(of.pack),
    "Session.pack_at call": lambda hf, of, own: hf.session("s").pack_at(of.pack),
    "index.begin_model_call frame": lambda hf, of, own: hf.index.begin_model_call(of.frame),
    "index.end_model_call frame": lambda hf, of, own: hf.index.end_model_call(of.frame, own.call),
    "index.end_model_call call": lambda hf, of, own: hf.index.end_model_call(own.frame, of.call),
    "index.begin_tool_call frame": lambda hf, of, own: hf.index.begin_tool_call(of.frame, "t"),
    "index.end_tool_call frame": lambda hf, of, own: hf.index.end_tool_call(of.frame, own.call),
    "index.end_tool_call call": lambda hf, of, own: hf.index.end_tool_call(own.frame, of.call),
    "index.suspend_frame frame": lambda hf, of, own: hf.index.suspend_frame(of.frame, "?"),
    "index.suspend_frame call": lambda hf, of, own: asked_about(hf, of.call),
    "index.answer question": lambda hf, of, own: hf.answer(of.question, approve=True),
    "index.answer token": lambda hf, of, own: hf.answer(token=of.token, approve=True),
    "index.resume_frame question": lambda hf, of, own: hf.index.resume_frame(of.question, approve=True),
    "index.resume_frame token": lambda hf, of, own: hf.index.resume_frame(token=of.token, approve=True),
    "index.reissue_token question": lambda hf, of, own: hf.index.reissue_token(of.question),
    "index.question question": lambda hf, of, own: hf.index.question(of.question),
    "index.answer_to question": lambda hf, of, own: hf.index.answer_to(ACTOR, of.question),
    "Holdfast.answer question": lambda hf, of, own: hf.answer(of.question, approve=True),
    "Holdfast.answer token": lambda hf, of, own: hf.answer(token=of.token, approve=True, by="ann"),
    "Holdfast.session id": lambda hf, of, own: hf.session(of.session, create=False),
    "Holdfast.session thread": lambda hf, of, own: hf.session("s", thread=of.thread, create=False),
    "Session.append_result call": lambda hf, of, own: hf.session("s").append_result(of.said_call, "r"),
    "Session.messages before": lambda hf, of, own: hf.session("s").messages(before=of.message),
    "Session.messages after": lambda hf, of, own: hf.session("s").messages(after=of.message),
    "Session.expand summary": lambda hf, of, own: hf.session("s").compaction.expand(of.summary),
    "Session.rewind to": lambda hf, of, own: hf.session("s").rewind(to=of.message),
    "Session.rewind before": lambda hf, of, own: hf.session("s").rewind(before=of.message),
    "Session.fork at": lambda hf, of, own: hf.session("s").fork(of.message),
    "Session.pin message": lambda hf, of, own: hf.session("s").pin(of.message),
    "Session.unpin message": lambda hf, of, own: hf.session("s").unpin(of.message),
    "effects.get effect": lambda hf, of, own: hf.effects.get(of.effect),
    "effects.revive effect": lambda hf, of, own: hf.effects.revive(of.effect),
    "effects.discard effect": lambda hf, of, own: hf.effects.discard(of.effect),
    "effects.approve effect": lambda hf, of, own: hf.effects.approve(of.approval),
    "effects.reject effect": lambda hf, of, own: hf.effects.reject(of.approval),
    "journal.artifact name": lambda hf, of, own: hf.journal.artifact(of.artifact),
    # What an operator declares is done later, with the same right.
    "operate Delegate": lambda hf, of, own: settled(hf, Delegate("cook", "g", parent=of.frame)),
    "operate Handoff": lambda hf, of, own: settled(hf, Handoff("cook", "g", frame=of.frame)),
    "operate RequestApproval": lambda hf, of, own: settled(hf, RequestApproval("?", frame=of.frame)),
}

ANSWERED = {
    f"index.{row}" for row in ("answer_to question", "add_handle handle", "add_handle call", "suspend_frame call")
}
"""Where an unknown id is no mistake: there is no answer yet, a handle is new, or a call is only noted."""

PARAMETERS = frozenset(
    {"frame", "parent", "question", "token", "effect", "call", "message", "before", "after", "to", "at", "summary"}
    | {"handle", "removal"}
)
NO_IDS = {
    "journal.events after",
    "journal.subscribe after",
    "index.suspend_frame token",
    "index.pop_frame summary",
    "index.add_result summary",
    "Session.append message",
    "Session.turn message",
}
"""Parameters of these names that take a cursor, a flag or a text."""


def asked_about(hf: Holdfast, call: str) -> Any:
    """A new frame that is suspended because of a call."""
    return hf.index.suspend_frame(hf.index.push_frame("g", scope=ACTOR), "?", call=call)


def settled(hf: Holdfast, effect: Any) -> Any:
    """Raise the reason for which an effect is dead; it is taken out again."""
    (id,) = declare(hf, effect)
    hf.effects.dispatch()
    dead = hf.effects.get(id)
    hf.effects.discard(id)
    raise NotFound(f"{dead.status} after {dead.attempts}: {dead.reason}")


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else tmp_path / "a.db"
    with holdfast.open(url, clock=FrozenClock(), durability="fast", summarizer=lambda messages: "short") as client:
        yield client
        assert client.journal.verify().findings == ()


def told(hf: Holdfast, ask: Ask, of: Things, own: Things) -> tuple[str, str]:
    """The error, with the names in it left out; or the answer."""
    try:
        text, kind = repr(ask(hf, of, own)), "answer"
    except (NotFound, ToolPairingError) as error:
        text, kind = str(error), type(error).__name__
    except (holdfast.Refused, holdfast.Corrupt) as error:
        text, kind = str(error), "answer"  # It was found, and something else was wrong.
    for name in of.__struct_fields__:
        text = text.replace(getattr(of, name), f"<{name}>")
    return kind, ULID.sub("<new>", text)


def test_what_another_tenant_made_is_as_unknown_as_what_nobody_made(hf: Holdfast) -> None:
    theirs, nobodys = made_by(hf.tenant("globex")), never_made()
    before = list(hf.tenant("globex").journal.events())
    for number, (row, ask) in enumerate(ASKS.items()):
        view = hf.tenant(f"t{number}")
        own = made_by(view)
        foreign, unknown = (told(view, ask, of, own) for of in (theirs, nobodys))
        assert foreign == unknown, row
        assert (foreign[0] == "answer") == (row in ANSWERED), f"{row}: {foreign}"
        if "model_call" in row:
            own = msgspec.structs.replace(own, call=view.index.begin_model_call(own.frame))
        kind, text = told(view, ask, own, own)  # Else all of this would say nothing.
        assert kind == "answer" or "There is no" not in text, f"{row}: what is one's own is found"
    assert list(hf.tenant("globex").journal.events()) == before


def test_the_same_id_may_be_chosen_by_two(hf: Holdfast) -> None:
    theirs = made_by(hf.tenant("globex"))
    before = hf.tenant("globex").index.get_frame(theirs.frame)
    mine = hf.tenant("acme").index
    assert mine.push_frame("mine", scope=ACTOR, frame_id=theirs.frame) == theirs.frame
    mine.add_handle(theirs.frame, "document", handle=theirs.handle, body="mine")
    mine.pop_frame(theirs.frame, summary="mine")
    assert hf.tenant("globex").index.get_frame(theirs.frame) == before
    assert [one.body for one in hf.tenant("globex").index.handles(theirs.frame)] == ["b", "c"]


def test_every_parameter_that_takes_an_id_is_asked_with_a_foreign_one() -> None:
    found = set()
    for owner in ("Holdfast", "Session", "journal", "index", "effects"):
        for name, member in inspect.getmembers(OWNERS[owner], inspect.isfunction):
            for parameter in inspect.signature(member).parameters if not name.startswith("_") else ():
                found |= {f"{owner}.{name} {parameter}"} & {f"{owner}.{name} {one}" for one in PARAMETERS}
    assert found - set(ASKS) - NO_IDS == set()


def finds_by_id_alone(patch: pytest.MonkeyPatch) -> None:
    """Frames, questions and effects are found by their ids, whoever they belong to."""
    original = memory_tables.select_rows

    def found(tables: Any, tenant: str, query: Any) -> Any:
        everybodys = [] if query.stream is not None else original(tables, "globex", query)
        return original(tables, tenant, query) or everybodys

    patch.setattr(memory_tables, "select_rows", found)


def finds_any_event(patch: pytest.MonkeyPatch) -> None:
    """A message is found by its id in the session of the same name."""
    original = MemoryJournal.event

    def event(self: Any, tenant: str, id: bytes) -> Any:
        return original(self, tenant, id) or original(self, "globex", id)

    patch.setattr(MemoryJournal, "event", event)


def opens_any_artifact(patch: pytest.MonkeyPatch) -> None:
    original = MemoryJournal.artifact

    def artifact(self: Any, tenant: str, name: bytes) -> Any:
        owners = [owner for owner, known in self._artifacts if known == name]
        return original(self, owners[0] if owners else tenant, name)

    patch.setattr(MemoryJournal, "artifact", artifact)


@pytest.mark.parametrize(
    ("plant", "row"),
    [(finds_by_id_alone, "effects"), (finds_any_event, "Session"), (opens_any_artifact, "journal.artifact")],
)
def test_a_foreign_id_that_opened_something_would_be_seen(
    plant: Callable[[pytest.MonkeyPatch], None], row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ASKS", {name: ask for name, ask in ASKS.items() if name.startswith(row)})
    plant(monkeypatch)
    with (
        holdfast.open("memory:", clock=FrozenClock(), summarizer=lambda messages: "short") as hf,
        pytest.raises(AssertionError, match=row),
    ):
        test_what_another_tenant_made_is_as_unknown_as_what_nobody_made(hf)
