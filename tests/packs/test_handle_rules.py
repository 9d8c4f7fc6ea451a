"""Evidence that should not be followed: invented, somebody else's, erased, or from outside without leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import holdfast
from holdfast import Unavailable
from holdfast.core.frames import evidence as rules
from holdfast.errors import EvidenceFailed, InvalidValue
from holdfast.flow.packs import handles
from holdfast.records.events.calls import CallContent, ToolReturned
from holdfast.types import ERASED
from tests.packs.evidence_kit import ACTOR, Evidence, handle_to
from tests.scale import volume

KINDS = ("event_ref", "tool_output", "worker_finding", "worker_learning", "artifact", "document", "url")


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url) as client:
        yield client


# made up


INVENTED = [
    "", "x", "m57", "s12", "../../etc/passwd", "0" * 26, "7" + "Z" * 25, "8" + "Z" * 25, "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "session/alice/thread/main@1", "session/alice@0", "actor/main@999", "actor/main@-1", "actor/main@1e3", "@1",
    "x@1@2", "actor/main@" + "9" * 40, "actor/main@\uff11", "no/such/scope/x/y@1", "actor@1", "a" * 64, "zz" * 32,
    "ab" * 32, "state:", "state:user/42", "state:user/42#", "state:#key", "state:nope/x#key", "state:user/42#missing",
    "file:", "file:x", "state:user/42#" + "k" * 2_000, "http:", "https://example.com/", "' OR 1=1 --",
    "\u202e" + "x", "%00",
    "💥" * 30, "y" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_made_up_is_refused_by_name_and_with_a_reason(hf: holdfast.Holdfast, kind: str) -> None:
    at = Evidence(hf)
    for number, target in enumerate(INVENTED):
        name = f"h{number}"
        with pytest.raises(EvidenceFailed) as raised:
            at.follow(kind, target or None, handle=name)
        assert (raised.value.handle, raised.value.erased) == (name, False)
        assert raised.value.reason
        assert name in str(raised.value)
        assert len(str(raised.value)) < 600


@settings(max_examples=volume(150, 10_000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*KINDS, "smell"]),
    st.one_of(st.text(max_size=60), st.builds("{}@{}".format, st.text(max_size=8), st.integers())),
)
def test_any_target_gives_a_text_or_a_refusal(hf: holdfast.Holdfast, kind: str, target: str) -> None:
    try:
        handles.resolve_handle(hf.env, ACTOR, handle_to(kind, target))
    except EvidenceFailed:
        return
    raise AssertionError("an empty journal has nothing to show")


def test_a_journal_that_is_closed_is_not_a_failed_handle(hf: holdfast.Holdfast) -> None:
    """What the journal cannot do now would be true of every handle: the pack must not quietly lose them all."""
    at = Evidence(hf)
    handle = at.attach("event_ref", "actor/main@1")
    hf.close()
    with pytest.raises(Unavailable):
        handles.resolve_handle(at.env, ACTOR, handle)


# another tenant


def of_another_tenant(hf: holdfast.Holdfast) -> list[tuple[str, str]]:
    """Something of every kind that one tenant has."""
    at = Evidence(hf.tenant("a"))
    said = at.hf.session("alice").append("a secret of a")
    at.hf.state("user/42").write("key", "a secret of a")
    call = at.hf.index.begin_tool_call(at.frame, "t")
    at.hf.index.end_tool_call(at.frame, call, value="a secret of a")
    name = at.keep(b"a secret of a")
    return [("event_ref", said.id), ("event_ref", f"{said.stream}@{said.version}"), ("tool_output", said.id),
            ("tool_output", call), ("document", "state:user/42#key"), ("artifact", name)]  # fmt: skip


def test_another_tenants_things_are_not_there(hf: holdfast.Holdfast) -> None:
    targets = of_another_tenant(hf)
    mine, theirs = Evidence(hf.tenant("a"), "actor/two"), Evidence(hf.tenant("b"))
    for kind, target in targets:
        with pytest.raises(EvidenceFailed) as raised:
            theirs.follow(kind, target)
        assert "secret" not in str(raised.value)
        if (kind, target) != targets[3]:  # A call is found in the stream of its own actor.
            assert mine.follow(kind, target).text == "a secret of a"
    mine.scope = ACTOR
    assert handles.resolve_handle(mine.env, ACTOR, handle_to(*targets[3])).text == "a secret of a"


class Leaky:
    """A journal that does not look at who asks."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        if name in ("event", "entry", "artifact", "events_by_key", "revisions"):
            return lambda tenant, *rest: found("a", *rest)
        if name == "read":
            return lambda query: found(replace(query, tenant="a"))
        return found


def test_a_read_that_does_not_look_at_the_tenant_is_noticed(hf: holdfast.Holdfast) -> None:
    targets = of_another_tenant(hf)
    theirs = Evidence(hf.tenant("b"))
    leaky = replace(theirs.env, journal=Leaky(theirs.env.journal))
    for kind, target in targets:
        if kind == "artifact":  # Its name is the tenant's own, so that the text does not fit it.
            with pytest.raises(EvidenceFailed, match="not what was written"):
                handles.resolve_handle(leaky, ACTOR, handle_to(kind, target))
        else:
            assert handles.resolve_handle(leaky, ACTOR, handle_to(kind, target)).text == "a secret of a"


# the rule at the door


@pytest.mark.parametrize("trust", ["user", "tool", "model", "external"])
def test_evidence_that_nobody_vouches_for_cannot_be_critical(hf: holdfast.Holdfast, trust: str) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    guest = holdfast.Holdfast(replace(hf.env, trust=trust), owner=False)
    before = hf.journal.position()
    for client, declared in ((hf, trust), (guest, None), (guest, "system"), (guest, "operator")):
        with pytest.raises(InvalidValue, match="Attach it as high"):
            client.index.add_handle(frame, "document", body="x", priority="critical", trust=declared)
    assert hf.journal.position() == before
    guest.index.add_handle(frame, "document", body="x", priority="high")
    hf.index.add_handle(frame, "document", body="x", priority="critical", trust="operator")
    hf.index.add_handle(frame, "document", body="x", priority="critical")


def test_a_handle_cannot_become_critical_by_being_attached_again(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.add_handle(frame, "document", handle="h", body="x", priority="critical")
    with pytest.raises(InvalidValue, match="critical"):
        hf.index.add_handle(frame, "document", handle="h", body="evil", priority="critical", trust="tool")
    assert [(one.body, one.trust) for one in hf.index.handles(frame)] == [("x", "system")]


def test_a_door_that_believes_what_is_declared_is_noticed(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "lowest_trust", lambda declared, own: declared)
    guest = holdfast.Holdfast(replace(hf.env, trust="model"), owner=False)
    frame = hf.index.push_frame("f", scope=ACTOR)
    guest.index.add_handle(frame, "document", handle="h", body="x", priority="critical", trust="system")
    assert [one.priority for one in hf.index.handles(frame)] == [100]


# erasure


def test_what_was_erased_is_refused_and_what_was_shown_of_it_is_erased_too(hf: holdfast.Holdfast) -> None:
    bob = hf.as_user("bob")
    at = Evidence(hf)
    said = bob.session("alice").append("I am Bob.")
    bob.state("user/bob").write("name", "Bob")
    name = at.keep(b"Bob's file", subject="bob")
    targets = [
        ("event_ref", said.id),
        ("tool_output", said.id),
        ("document", "state:user/bob#name"),
        ("artifact", name),
    ]
    shown = [(target, at.follow(*target)) for target in targets]
    own = Evidence(bob, "actor/bob")
    body = own.follow("document", body="of Bob", handle="h")
    hf.journal.erase("bob")
    for target, found in shown:
        with pytest.raises(EvidenceFailed, match="erased") as raised:
            at.follow(*target)
        assert raised.value.erased
        assert at.again(found) is ERASED
    assert own.again(body) is ERASED
    (handle,) = hf.index.handles(own.frame)
    with pytest.raises(EvidenceFailed, match="erased"):
        handles.resolve_handle(own.env, "actor/bob", handle)


def test_an_outcome_with_content_of_its_own_is_erased_with_it(hf: holdfast.Holdfast) -> None:
    at = Evidence(hf)
    place = at.happen(
        "tool.returned", ToolReturned(call=at.frame, frame=at.frame), CallContent(value="of Bob"), subject="bob"
    )
    found = at.follow("tool_output", place)
    hf.journal.erase("bob")
    assert at.again(found) is ERASED
