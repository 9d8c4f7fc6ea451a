"""Operators: they read freely and write only what they declare, all of it in one append or nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.effects import (
    Custom,
    DeleteState,
    LinkState,
    OperatorOutput,
    PushFrame,
    RequestApproval,
    Signal,
    UnlinkState,
    WriteState,
)
from holdfast.errors import InvalidValue, KeyReused, RedactionFailed, VersionConflict
from holdfast.flow.effects import operators
from holdfast.flow.state.journal_store import JournalStore
from tests.backends import IN_MEMORY
from tests.effects.sinks import Noting, declare

WRITE = WriteState("user/1", "b", 2)


def tidy(order: dict[str, Any], view: holdfast.types.StateReader) -> OperatorOutput:
    """The operator of most tests."""
    seen = view("user/42").read("seen", default=0)
    return OperatorOutput(
        {"seen": seen},
        [
            WriteState("user/42", "last_order", order["id"]),
            WriteState("user/42", "seen", 1, reducer="sum"),
            Custom("crm.note", order, sink="crm"),
        ],
    )


def test_the_output_and_the_effects_are_one_append(hf: holdfast.Holdfast) -> None:
    before = hf.journal.position()
    done = hf.effects.operate(tidy, {"id": 17}, scope="operator/tidy", key="order-17")
    assert done.output == {"seen": 0}
    assert not done.repeated
    assert [(one.kind, one.sink, one.outcome) for one in done.outcomes] == [
        ("write", "state", "applied"),
        ("write", "state", "applied"),
        ("crm.note", "crm", "pending"),
    ]
    assert hf.state("user/42").read("last_order") == 17
    events = list(hf.journal.events(after=before))
    assert {event.type for event in events} == {"operator.ran", "effect.declared", "state.written"}
    assert len({event.at for event in events}) == 1
    ran = next(event for event in events if event.type == "operator.ran")
    assert ran.facts.effects == tuple(one.effect for one in done.outcomes)
    written = [event for event in events if event.type == "state.written"]
    assert [event.facts.effect for event in written] == [one.effect for one in done.outcomes[:2]]


def test_a_repeated_key_gives_the_first_answer_without_running_it_again(hf: holdfast.Holdfast) -> None:
    runs = []

    def counted(given: Any, view: holdfast.types.StateReader) -> OperatorOutput:
        runs.append(given)
        return tidy(given, view)

    hf.effects.add_sink("crm", Noting())
    first = hf.effects.operate(counted, {"id": 1}, key="k")
    assert hf.effects.operate(counted, {"id": 1}, key="k").outcomes[2].outcome == "pending"
    hf.effects.dispatch()
    again = hf.effects.operate(counted, {"id": 1}, key="k")
    assert len(runs) == 1
    assert again.repeated
    assert again.output == first.output
    assert [(one.effect, one.kind) for one in again.outcomes] == [(one.effect, one.kind) for one in first.outcomes]
    assert [one.outcome for one in again.outcomes] == ["applied"] * 3
    assert again.outcomes[2].answer == {"taken": 1}
    assert hf.state("user/42").read("seen") == 1


def test_a_key_that_stands_for_something_else_is_refused(hf: holdfast.Holdfast) -> None:
    hf.effects.operate(tidy, {"id": 1}, scope="operator/x", key="k")
    with pytest.raises(KeyReused, match="something else"):
        hf.effects.operate(lambda given, view: None, scope="operator/x", key="k", name="other")
    hf.journal.append("operator/x", "app.noted", key="n")
    with pytest.raises(KeyReused, match="something else"):
        hf.effects.operate(tidy, {"id": 1}, scope="operator/x", key="n")


def test_whoever_has_the_same_key_and_is_quicker_is_the_one_that_ran(hf: holdfast.Holdfast) -> None:
    runs = iter(["slow", "quick"])

    def slow(given: Any, view: holdfast.types.StateReader) -> OperatorOutput:
        who = next(runs)
        if who == "slow":
            hf.effects.operate(slow, scope="operator/x", key="k")
        return OperatorOutput(who, [WriteState("user/1", "who", who, expected_version=0)])

    done = hf.effects.operate(slow, scope="operator/x", key="k")
    assert (done.output, done.repeated) == ("quick", True)
    assert [event.type for event in hf.journal.events("operator/x")] == ["operator.ran"]
    assert hf.state("user/1").read("who") == "quick"


def test_what_is_no_operator_output_is_an_output_without_effects(hf: holdfast.Holdfast) -> None:
    @dataclasses.dataclass
    class Answer:
        text: str

    assert hf.effects.operate(lambda given, view: given + 1, 1, name="add").output == 2
    assert hf.effects.operate(lambda given, view: Answer("yes"), name="say").output == {"text": "yes"}
    assert hf.effects.operate(lambda given, view: None, name="nothing").outcomes == ()


def test_an_operator_that_raises_writes_nothing_and_its_error_is_the_callers(hf: holdfast.Holdfast) -> None:
    class Broken(Exception):
        pass

    def broken(given: Any, view: holdfast.types.StateReader) -> None:
        raise Broken("as it is")

    before = hf.journal.position()
    with pytest.raises(Broken, match="as it is"):
        hf.effects.operate(broken, key="k")
    assert hf.journal.position() == before


class _Unknown(msgspec.Struct, frozen=True, tag_field="type", tag="teleport"):
    where: str = "mars"


WRONG: list[tuple[Any, str]] = [
    (_Unknown(), "not _Unknown"),
    ({"type": "write"}, "not dict"),
    (None, "not NoneType"),
    (WriteState("user/1", "k", object()), "not plain JSON"),
    (WriteState("user/1", "k", float("nan")), "not a JSON number"),
    (WriteState("user/1", 3, 1), "Expected str"),
    (WriteState("user/1", "", 1), "must not be empty"),
    (WriteState("no/such", "k", 1), "not a kind of scope"),
    (WriteState("user/1", "k", 1, reducer="minus"), "reducer must be one of"),
    (WriteState("user/1", "k", 1, ttl=-1), "ttl"),
    (WriteState("user/1", "k", 1, salience=2), "salience"),
    (WriteState("user/1", "k", 1, expected_version=-1), "expected_version"),
    (WriteState("user/1", "k", 1, lifetime="transient"), "transient"),
    (WriteState("user/1", "k", 1, store="frames"), "built in"),
    (DeleteState("user/1", "a\0b"), "control character|NUL"),
    (LinkState("user/1", "a", "", "b"), "must not be empty"),
    (LinkState("user/1", "a", "knows", "b", weight="heavy"), "Expected float"),
    (UnlinkState("user/1", "", "knows", "b"), "must not be empty"),
    (Signal("user/1", "no spaces"), "letters, digits"),
    (Signal(7, "x"), "scope must be"),
    (Custom("note", {1: 2}, sink="crm"), "keys must be strings"),
    (Custom("write", {}, sink="crm"), "holdfast's own"),
    (Custom("note", {}, sink="state"), "built in"),
    (Custom("note", {}, sink=""), "must not be empty"),
    (Custom("", {}, sink="crm"), "letters, digits"),
    (PushFrame("main", "  "), "must be a text"),
    (PushFrame("", "goal"), "must not be empty"),
    (PushFrame("main", "goal", tokens="many"), "Expected int | float"),
    (RequestApproval("ok?", frame="frame-7"), "not a ULID"),
    (RequestApproval("ok?", options="yes"), "Expected array"),
    (RequestApproval("ok?", options=["yes"], recommended="no"), "recommended"),
]


@pytest.mark.parametrize(("effect", "words"), WRONG, ids=[f"{type(one).__name__}-{say}" for one, say in WRONG])
def test_a_wrong_effect_refuses_everything(effect: Any, words: str) -> None:
    with holdfast.open("memory:") as hf:
        with pytest.raises(InvalidValue, match=words.replace("|", "\\|") if "Expected int" in words else words):
            declare(hf, WriteState("user/1", "fine", 1), effect, Custom("fine", 1, sink="crm"))
        assert hf.journal.position() == 0


def test_effects_must_be_a_list(hf: holdfast.Holdfast) -> None:
    wrong: Any = Custom("note", 1, sink="crm")
    with pytest.raises(InvalidValue, match="list of effects"):
        hf.effects.operate(lambda given, view: OperatorOutput(1, wrong), name="x")
    assert hf.journal.position() == 0


def test_operators_that_must_be_awaited_are_refused(hf: holdfast.Holdfast) -> None:
    async def later(given: Any, view: Any) -> None: ...

    with pytest.raises(InvalidValue, match="open_async"):
        hf.effects.operate(later)
    with pytest.raises(InvalidValue, match="open_async"):
        hf.effects.operate(lambda given, view: later(given, view), name="x")
    wrong: Any = "tidy"
    with pytest.raises(InvalidValue, match="function"):
        hf.effects.operate(wrong)


def test_one_refused_write_refuses_everything(hf: holdfast.Holdfast) -> None:
    hf.state("user/1").write("n", "text")
    before = hf.journal.position()
    with pytest.raises(VersionConflict):
        declare(hf, WriteState("user/2", "a", 1), WriteState("user/1", "n", 2, expected_version=0))
    with pytest.raises(InvalidValue, match="reducer sum"):
        declare(hf, WriteState("user/2", "a", 1), WriteState("user/1", "n", 2, reducer="sum"))
    assert hf.journal.position() == before
    assert hf.state("user/2").list() == []


def test_effects_of_one_operator_see_each_other_in_order(hf: holdfast.Holdfast) -> None:
    declare(
        hf,
        WriteState("user/1", "list", "a", reducer="append"),
        WriteState("user/1", "list", "b", reducer="append"),
        WriteState("user/1", "gone", 1),
        DeleteState("user/1", "gone"),
        WriteState("user/1", "again", 1),
        DeleteState("user/1", "again"),
        WriteState("user/1", "again", 2, expected_version=0),
        LinkState("user/1", "list", "next", "again", weight=2.0),
        LinkState("user/1", "list", "next", "gone"),
        UnlinkState("user/1", "list", "next", "gone"),
        UnlinkState("user/1", "never", "was", "there"),
        DeleteState("user/1", "never"),
    )
    state = hf.state("user/1")
    assert state.read("list") == ["a", "b"]
    assert state.read("again") == 2
    assert state.read("gone") is None
    assert [edge.target for edge in state.neighbours("list")] == ["again"]
    versions = [event.version for event in hf.journal.events("user/1") if getattr(event.facts, "key", "") == "again"]
    assert state.entry("again").version == max(versions)  # type: ignore[union-attr]


def test_an_operator_may_write_into_the_scope_it_runs_in(hf: holdfast.Holdfast) -> None:
    declare(hf, WriteState("operator/test", "n", 1), Custom("note", 1, sink="crm"), key="k")
    assert hf.state("operator/test").read("n") == 1
    assert [event.type for event in hf.journal.events_by_key("operator/test", "k")] == [
        "operator.ran",
        "state.written",
        "effect.declared",
    ]


def test_what_is_written_for_good_is_not_hidden_by_a_transient_entry(hf: holdfast.Holdfast) -> None:
    hf.state("user/1").write("n", "for a moment", lifetime="transient")
    declare(hf, WriteState("user/1", "n", "for good"))
    assert hf.state("user/1").read("n") == "for good"


def test_a_view_cannot_write(hf: holdfast.Holdfast) -> None:
    def sly(given: Any, view: Any) -> None:
        assert not hasattr(view, "write")
        view("user/1")._run_flow(holdfast.State.write, "n", 1)

    with pytest.raises(TypeError, match="only reads"):
        hf.effects.operate(sly)


def test_values_of_registered_types_keep_their_type(hf: holdfast.Holdfast) -> None:
    class Prefs(msgspec.Struct):
        tea: bool = False

    holdfast.register_type(Prefs, f"prefs-{id(Prefs)}", version=1)
    declare(hf, WriteState("user/1", "prefs", Prefs(tea=True)))
    assert hf.state("user/1").read("prefs", as_=Prefs) == Prefs(tea=True)
    (event,) = hf.journal.events("user/1")
    assert event.facts.value_schema == f"prefs-{id(Prefs)}@1"


# middleware


def test_middleware_may_change_an_effect(hf: holdfast.Holdfast) -> None:
    def shout(effect: Any) -> Any:
        return msgspec.structs.replace(effect, value=effect.value.upper()) if effect.key == "say" else effect

    undo = hf.effects.add_middleware(shout)
    declare(hf, WriteState("user/1", "say", "hello"))
    assert hf.state("user/1").read("say") == "HELLO"
    undo()
    declare(hf, WriteState("user/1", "say", "hello"))
    assert hf.state("user/1").read("say") == "hello"


def test_middleware_may_suppress_an_effect_and_that_is_noted(hf: holdfast.Holdfast) -> None:
    hf.effects.add_middleware(lambda effect: None if isinstance(effect, Custom) else effect)
    hf.effects.add_middleware(lambda effect: effect)
    effects = [WriteState("user/1", "a", 1), Custom("crm.note", {}, sink="crm")]
    done = hf.effects.operate(lambda given, view: OperatorOutput(1, effects), key="k", scope="operator/x", name="x")
    again = hf.effects.operate(lambda given, view: OperatorOutput(1, effects), key="k", scope="operator/x", name="x")
    for one in (done, again):
        assert [(out.kind, out.outcome) for out in one.outcomes] == [("write", "applied"), ("crm.note", "skipped")]
    (ran,) = hf.journal.events_by_key("operator/x", "k")
    assert ran.facts.suppressed == (done.outcomes[1].effect,)
    assert list(hf.effects.pending()) == []


def test_middleware_that_gives_something_else_or_raises_refuses_everything(hf: holdfast.Holdfast) -> None:
    def broken(effect: Any) -> Any:
        raise ZeroDivisionError

    wrong: list[Any] = [lambda effect: "an effect", broken]
    for function, error in zip(wrong, (InvalidValue, ZeroDivisionError), strict=True):
        undo = hf.effects.add_middleware(function)
        with pytest.raises(error):
            declare(hf, WriteState("user/1", "a", 1))
        undo()
    assert hf.journal.position() == 0
    not_callable: Any = 7
    with pytest.raises(InvalidValue):
        hf.effects.add_middleware(not_callable)


# tenants, users, redaction


def test_tenants_do_not_see_each_others_effects_sinks_or_middleware(hf: holdfast.Holdfast) -> None:
    acme, other = hf.tenant("acme"), hf.tenant("other")
    ours, everybodys = Noting(), Noting()
    acme.effects.add_sink("crm", ours)
    hf.effects.add_sink("crm", everybodys)
    acme.effects.add_middleware(lambda effect: None if isinstance(effect, WriteState) else effect)
    for view in (acme, other):
        declare(view, WriteState("user/1", "a", 1), Custom("note", view.env.tenant, sink="crm"))
    assert (acme.state("user/1").list(), other.state("user/1").list()) == ([], ["a"])
    assert list(hf.effects.pending()) == []
    assert hf.effects.dispatch().attempts == 0
    assert other.effects.dispatch().applied == 1
    assert (ours.payloads, everybodys.payloads) == ([], ["other"])
    assert acme.effects.dispatch().applied == 1
    assert (ours.payloads, everybodys.payloads) == (["acme"], ["other"])
    assert {effect.tenant for effect in ours.asked} == {"acme"}


def test_erasing_a_user_erases_what_was_to_be_sent_about_them(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    declare(hf.as_user("alice"), Custom("note", {"who": "alice"}, sink="crm"), Custom("note", 2, sink="crm"))
    hf.effects.dispatch(limit=1)
    hf.journal.erase("alice")
    (info,) = hf.effects.pending()
    assert info.payload is holdfast.types.ERASED
    assert hf.effects.dispatch().skipped == 1
    assert len(sink.taken) == 1
    done = [event for event in hf.journal.events("operator/test") if event.type == "effect.settled"]
    assert [event.facts.outcome for event in done] == ["applied", "skipped"]
    assert done[0].content is holdfast.types.ERASED


def test_what_is_redacted_changes_what_an_effect_says_and_never_where_it_goes() -> None:
    def redact(text: str) -> str:
        return text.replace("secret", "[x]")

    with holdfast.open("memory:", redact=redact) as hf:
        sink = Noting()
        hf.effects.add_sink("crm", sink)
        declare(hf, Custom("note", {"say": "a secret"}, sink="crm"), PushFrame("main", "a secret"))
        hf.effects.dispatch()
        assert sink.payloads == [{"say": "a [x]"}]
        assert hf.index.stack("actor/main")[0].goal == "a [x]"
        with pytest.raises(RedactionFailed, match="where the effect"):
            declare(hf, PushFrame("secret", "goal"))
        with pytest.raises(RedactionFailed, match="where the effect"):
            declare(hf, WriteState("user/secret", "k", 1, store="elsewhere"))


def test_planted_an_operator_that_runs_again_under_its_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory:") as hf:
        monkeypatch.setattr(operators, "find_earlier_run", lambda *given: None)
        with pytest.raises(AssertionError):
            test_a_repeated_key_gives_the_first_answer_without_running_it_again(hf)


def test_planted_effects_that_do_not_see_each_other_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(operators.EffectPlan):
        def get(self, scope: str, key: str) -> Any:
            return JournalStore.get(self, scope, key)

    monkeypatch.setattr(operators, "EffectPlan", Forgetful)
    with holdfast.open("memory:") as hf, pytest.raises((AssertionError, VersionConflict, holdfast.Conflict)):
        test_effects_of_one_operator_see_each_other_in_order(hf)


@pytest.mark.parametrize(
    "answer",
    [WRITE, [WRITE], ("out", [WRITE]), {"effects": (WRITE,)}, [OperatorOutput(1)], [[Custom("x", 1, sink="s")]]],
)
@IN_MEMORY
def test_effects_that_are_given_as_an_output_are_refused(hf: holdfast.Holdfast, answer: Any) -> None:
    with pytest.raises(InvalidValue, match=r"OperatorOutput\(effects="):
        hf.effects.operate(lambda given, view: answer, name="forgot")
    assert hf.journal.position() == 0


def test_an_output_that_holds_itself_is_refused_in_time(hf: holdfast.Holdfast) -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(InvalidValue, match="holds itself"):
        hf.effects.operate(lambda given, view: loop, name="x")


def test_an_edge_is_taken_away_however_many_its_key_has(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hf.state("custom/crm/id/p")
    for number in range(4):
        graph.link("hub", "knows", f"n{number}")
    # As if there were more edges than one question gives.
    journal = hf.env.journal
    real = journal.edges
    monkeypatch.setattr(journal, "edges", lambda tenant, query: real(tenant, query)[:2])
    declare(hf, UnlinkState("custom/crm/id/p", "hub", "knows", "n3"))
    monkeypatch.undo()
    assert [edge.target for edge in graph.neighbours("hub")] == ["n0", "n1", "n2"]
