"""Evidence that a parent passes on: the child's own, read where it is kept, and erased with whom it belongs to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast
from holdfast.core.frames import evidence
from holdfast.errors import InvalidValue, KeyReused, NotFound
from holdfast.flow.packs import handles, visibility
from holdfast.types import ERASED
from tests.backends import check_rebuilt
from tests.scale import seeded, volume

ACTOR = "actor/main"


@pytest.fixture(params=["memory", "sqlite", "sqlite without cache"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    """A client; whatever a test did with it, the journal verifies and is the same when it is made anew."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    settings = holdfast.Settings(cached_streams=0) if "without" in request.param else None
    with holdfast.open(url, settings=settings) as client:
        yield client
        check_rebuilt(client)


def test_a_child_has_the_evidence_that_it_was_given_and_no_other(hf: Holdfast) -> None:
    with hf.frame("Work") as root:
        note = root.attach("document", body="may contain nuts", description="the label", priority="high", tokens=5)
        root.attach("document", body="not for children")
        with root.frame("Below", inherit=[note, note]) as child:
            (given,) = hf.index.handles(child.id)
            (own, _) = hf.index.handles(root.id)
            names = ("id", "kind", "priority", "tokens", "description", "body", "target", "trust")
            assert all(getattr(given, name) == getattr(own, name) for name in names)
            assert (given.source_stream, given.source_version) == (root.scope, own.version)
            assert child.info().handles[0].id == note
            root.detach(note)
            assert hf.index.handles(child.id)[0].removed is None  # It is the child's now.
            with child.frame("Further below", inherit=[note]) as deeper:
                (again,) = hf.index.handles(deeper.id)
                assert (again.body, again.source_version) == ("may contain nuts", own.version)
    added = [event for event in hf.journal.events(root.scope) if event.type == "frame.handle_added"]
    assert [event.content is None for event in added] == [False, False, True, True]


def test_evidence_that_is_not_there_is_refused_and_nothing_is_written(hf: Holdfast) -> None:
    root = hf.index.push_frame("Work", scope=ACTOR, tokens=100)
    gone = hf.index.add_handle(root, "document", body="a")
    kept = hf.index.add_handle(root, "document", body="b")
    hf.index.remove_handle(root, gone)
    before = hf.journal.position()
    for names in ([gone], ["nobody"], [kept, "nobody"]):
        for scope in (None, "actor/far"):
            with pytest.raises(NotFound, match="nobody" if "nobody" in names else gone):
                hf.index.push_frame("Below", parent=root, scope=scope, inherit=names)
    wrong: list[Any] = [kept, 7, [7], [""], {"a": 1}, None]
    for names in wrong:
        with pytest.raises(InvalidValue):
            hf.index.push_frame("Below", parent=root, inherit=names)
    with pytest.raises(InvalidValue):
        hf.index.push_frame("Root", scope=ACTOR, inherit=[kept])
    assert hf.journal.position() == before
    assert hf.index.get_frame(root).status == "active"


def test_a_key_stands_for_a_push_with_what_it_inherits(hf: Holdfast) -> None:
    root = hf.index.push_frame("Work", scope=ACTOR)
    one = hf.index.add_handle(root, "document", body="a")
    two = hf.index.add_handle(root, "document", body="b")
    child = hf.index.push_frame("Below", parent=root, inherit=[one], key="k")
    assert hf.index.push_frame("Below", parent=root, inherit=[one], key="k") == child
    hf.index.remove_handle(root, one)
    assert hf.index.push_frame("Below", parent=root, inherit=[one], key="k") == child
    for other in ([two], [], [one, two]):
        with pytest.raises(KeyReused):
            hf.index.push_frame("Below", parent=root, inherit=other, key="k")
    assert [handle.id for handle in hf.index.handles(child)] == [one]


def test_evidence_that_was_passed_on_is_erased_with_whom_it_belongs_to(hf: Holdfast) -> None:
    root = hf.index.push_frame("Work", scope=ACTOR)
    note = hf.as_user("ann").index.add_handle(root, "document", body="secret", description="of Ann", target="x")
    child = hf.as_user("bob").index.push_frame("Below", parent=root, scope="actor/far", inherit=[note])
    hf.journal.erase("ann")
    (given,) = hf.index.handles(child)
    assert (given.body, given.description, given.target) == (ERASED, ERASED, ERASED)
    assert "secret" not in "".join(map(str, hf.journal.events("actor/far")))


def test_nobody_makes_evidence_more_trusted_by_passing_it_on(hf: Holdfast) -> None:
    root = hf.index.push_frame("Work", scope=ACTOR)
    note = hf.index.add_handle(root, "document", body="buy now", trust="external")
    child = hf.index.push_frame("Below", parent=root, inherit=[note])
    assert hf.index.handles(child)[0].trust == "external"
    (copy,) = [event for event in hf.journal.events(ACTOR) if event.type == "frame.handle_added"][1:]
    assert copy.facts.trust == "external"


def test_a_handle_is_found_at_the_nearest_ancestor_that_has_it(hf: Holdfast) -> None:
    def found(frame: str, handle: str) -> tuple[Any, str] | None:
        hit = visibility.find_handle(hf.env, frame, handle)
        return None if hit is None else (hit[0].body, hit[1])

    root = hf.index.push_frame("Work", scope=ACTOR)
    child = hf.index.push_frame("Below", parent=root, scope="actor/far")
    hf.index.add_handle(root, "document", handle="a", body="of the root")
    assert found(child, "a") == ("of the root", ACTOR)
    assert found(root, "a") == ("of the root", ACTOR)
    hf.index.add_handle(child, "document", handle="a", body="of the child")
    hf.index.add_handle(child, "document", handle="b", body="also")
    assert found(child, "a") == ("of the child", "actor/far")
    assert found(root, "b") is None  # Nobody looks down.
    hf.index.remove_handle(child, "a")
    assert found(child, "a") == ("of the root", ACTOR)
    hf.index.remove_handle(root, "a")
    assert found(child, "a") is None


def passed_on(hf: Holdfast, chance: random.Random) -> None:
    """However far evidence is passed on, and through whatever streams, it leads to the same text."""
    env = hf.env
    frame, stream = hf.index.push_frame("root", scope=ACTOR, limits=holdfast.Limits(depth=20)), ACTOR
    shown: dict[str, str] = {}
    for depth in range(chance.randint(1, 5)):
        for number in range(chance.randint(1, 3)):
            name = f"h{depth}.{number}"
            kind, given = chance.choice(WAYS)(hf, frame, stream, chance)
            hf.index.add_handle(frame, kind, handle=name, **given)
        known = {one.id: one for one in hf.index.handles(frame)}
        resolved = {name: handles.resolve_handle(env, stream, one) for name, one in known.items()}
        assert all(shown[name] == one.text for name, one in resolved.items() if name in shown)
        shown = {name: one.text for name, one in resolved.items()}
        for name, one in resolved.items():
            again = handles.reload_evidence(env, handles.evidence_origin(stream, known[name], one))
            assert one.outside or again == one.text
        names = chance.sample(sorted(known), chance.randint(1, len(known)))
        away = chance.choice([None, f"actor/far{depth}"])
        frame = hf.index.push_frame("next", parent=frame, scope=away, inherit=names)
        stream = away or stream


def _with_body(hf: Holdfast, frame: str, stream: str, chance: random.Random) -> tuple[str, dict[str, Any]]:
    return "document", {"body": f"text {chance.random()}\n" * chance.randint(1, 50)}


def _an_entry(hf: Holdfast, frame: str, stream: str, chance: random.Random) -> tuple[str, dict[str, Any]]:
    key = f"doc {chance.random()}"
    hf.state(stream).write(key, f"kept under {key}")
    return "document", {"target": f"state:{stream}#{key}"}


def _a_tool_call(hf: Holdfast, frame: str, stream: str, chance: random.Random) -> tuple[str, dict[str, Any]]:
    call = hf.index.begin_tool_call(frame, "look", arguments={})
    hf.index.end_tool_call(frame, call, value=f"seen {chance.random()}")
    return "tool_output", {"call": call}


WAYS: list[Callable[..., tuple[str, dict[str, Any]]]] = [_with_body, _an_entry, _a_tool_call]


def test_evidence_leads_to_the_same_text_however_far_it_is_passed_on() -> None:
    chance = seeded("inherited")
    for _ in range(volume(12, 300)):
        with holdfast.open("memory:") as hf:
            passed_on(hf, random.Random(chance.randrange(2**32)))


def in_several_worlds() -> None:
    for seed in range(10):
        with holdfast.open("memory:") as hf:
            passed_on(hf, random.Random(seed))


def test_evidence_that_lost_its_source_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = evidence.inherit_handle

    def lost(*given: Any) -> Any:
        draft = real(*given)
        return replace(draft, facts=replace(draft.facts, source_stream=None, source_version=None))

    monkeypatch.setattr(evidence, "inherit_handle", lost)
    with pytest.raises((AssertionError, holdfast.HoldfastError)):
        in_several_worlds()
