"""Erasing a user takes what was declared, output or signalled in their scope, and nothing erased is ever sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core import effects as rules
from holdfast.effects import Custom, LinkState, OperatorOutput, PushFrame, Signal, WriteState
from holdfast.flow.effects import operators, settle, sinks
from tests.effects.sinks import Noting, declare, notes

OTHERS = "custom/crm/id/p"


def _on_disk(folder: Path) -> set[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return {b"canary%d;" % number for number in range(20) if b"canary%d;" % number in data}


def _tell(hf: holdfast.Holdfast, scope: str, first: int) -> None:
    """Somebody declares everything there is, with words that are looked for later."""

    def operator(given: Any, view: holdfast.types.StateReader) -> OperatorOutput:
        words = [f"canary{number};" for number in range(first, first + 7)]
        return OperatorOutput(
            {"about": words[0]},
            [
                Custom("mail", {"text": words[1]}, sink="crm"),
                Custom("mail", {"text": words[2]}, sink="later"),
                WriteState("user/42", f"n{first}", words[3], store="beside"),
                Signal("user/42", "ping", {"text": words[4]}),
                LinkState(OTHERS, "x", "about", f"n{first}", target_scope="user/42", data=words[5]),
                LinkState(OTHERS, "x", "about", "n", target_scope="user/42", data=words[6], store="beside"),
            ],
        )

    hf.effects.operate(operator, scope=scope, name="tell")


def _story(folder: Path) -> holdfast.Holdfast:
    hf = holdfast.open(folder / "a.db")
    hf.effects.add_sink("crm", lambda effect: {"echo": effect.payload})
    _tell(hf, "user/42", 0)  # In the user's own scope, and nobody acts.
    _tell(hf.as_user("42"), "operator/x", 10)
    return hf


def _everything_goes(folder: Path) -> None:
    with _story(folder) as hf:
        hf.effects.dispatch(sink="crm")
        hf.effects.dispatch(sink="signals")
        assert len(_on_disk(folder)) == 14
        hf.journal.erase("42")
        assert _on_disk(folder) == set()
        assert hf.journal.verify().findings == ()
        hf.journal.rebuild()
        assert hf.journal.verify().findings == ()
    assert _on_disk(folder) == set()


def test_erasing_a_user_takes_all_that_was_declared_in_their_scope_or_by_them(tmp_path: Path) -> None:
    _everything_goes(tmp_path)


def _nobody(effect: Any, user: str | None, declared_in: str) -> str | None:
    return user


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (operators.rules, "user_of", lambda *places: None),
        (operators.rules, "subject_of", _nobody),
        (sinks, "subject_of", _nobody),
        (settle, "subject_of", _nobody),
    ],
)
def test_planted_words_that_belong_to_nobody_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(AssertionError):
        _everything_goes(tmp_path)


def test_what_was_erased_before_it_was_sent_is_never_sent(tmp_path: Path) -> None:
    with _story(tmp_path) as hf:
        ids = [info.id for info in hf.effects.pending()]
        hf.journal.erase("42")
        sink = Noting()
        hf.effects.add_sink("later", sink)
        with holdfast.open_store("memory:") as store:
            hf.effects.add_sink("beside", store)
            assert hf.effects.dispatch() == holdfast.effects.DispatchReport(skipped=len(ids))
            assert store("user/42").list() == []
        assert sink.asked == []
        assert [event.type for event in hf.journal.events("user/42")].count("app.signal.ping") == 0
        for id in ids:
            info = hf.effects.get(id)
            assert (info.status, "erased" in info.reason, bool(info.payload)) == ("skipped", True, False)


def test_an_erased_effect_is_done_with_even_where_nobody_knows_its_sink(hf: holdfast.Holdfast) -> None:
    notes(hf.as_user("42"), 1, sink="nowhere")
    hf.journal.erase("42")
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(skipped=1)


def test_who_acts_owns_what_they_declare_elsewhere(hf: holdfast.Holdfast) -> None:
    declare(hf.as_user("7"), Custom("note", 1, sink="crm"), Signal("user/42", "ping", 2), scope="user/42")
    declare(hf.as_user("7"), WriteState("user/42", "a", 3, store="beside"), scope="operator/x")
    hf.journal.erase("42")
    kept = [info.payload for info in hf.effects.pending() if info.payload]
    assert [payload for payload in kept if payload == 1 or payload.get("kind") == "ping"] == kept
    assert len(kept) == 2
    hf.journal.erase("7")
    assert [info.payload for info in hf.effects.pending() if info.payload] == []


def test_whose_an_effect_is() -> None:
    link = LinkState(OTHERS, "x", "about", "n", target_scope="user/42", store="beside")
    for effect, user, place, owner in (
        (link, None, OTHERS, "42"),
        (link, "7", OTHERS, "42"),
        (LinkState("user/1", "x", "about", "n", target_scope="user/42"), None, OTHERS, "1"),
        (WriteState(OTHERS, "n", 1), "7", "user/42", "7"),
        (WriteState(OTHERS, "n", 1), None, "user/42", "42"),
        (Signal("user/42", "ping"), None, "user/1", "42"),
        (Signal(OTHERS, "ping"), None, "user/1", "1"),
        (Custom("note", 1, "crm"), None, OTHERS, None),
        (PushFrame("main", "a goal"), None, "actor/main/user/3", "3"),
    ):
        assert rules.subject_of(effect, user, place) == owner
