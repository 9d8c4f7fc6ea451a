"""What goes wrong in somebody's first minutes says what to do."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import holdfast
from examples import agent_with_approval
from holdfast.cli.main import main


@pytest.mark.parametrize("name", ["agent", "session", "journal", "close"])
def test_a_client_that_was_not_awaited_says_how_it_is_opened(name: str) -> None:
    opening = holdfast.open_async("memory:")
    with pytest.raises(AttributeError, match=rf"has no {name}.*async with holdfast\.open_async\(…\) as hf"):
        getattr(opening, name)
    assert not hasattr(opening, "__len__")
    assert copy.copy(opening) is not opening, "nothing but what is asked for by name is refused"


@pytest.mark.parametrize(
    ("said", "paid"), [("yes", True), ("Y", True), ("no", False), ("", False), ("yesterday", False)]
)
def test_yes_is_a_yes_in_the_examples(
    said: str, paid: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setattr("sys.argv", ["agent_with_approval.py"])
    monkeypatch.setattr("builtins.input", lambda _prompt: said)
    agent_with_approval.main()
    assert ("(17, 240.0)" in capsys.readouterr().out) == paid


def test_other_words_under_the_key_of_an_example_are_told_to_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setattr("sys.argv", ["agent_with_approval.py"])
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")
    agent_with_approval.main()
    monkeypatch.setattr("sys.argv", ["agent_with_approval.py", "Refund", "order", "18"])
    with pytest.raises(SystemExit, match=r"req-81 stands for another request.*KEY=req-82"):
        agent_with_approval.main()


def test_what_is_no_id_of_a_call_is_complained_of_as_it_was_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.db")
    with holdfast.open(path) as hf:
        hf.session("alice").append("Hello")
    assert main(["pack", path, "alice", "--call", "abc"]) != 0
    assert "'abc' is not the id of a call" in capsys.readouterr().err
