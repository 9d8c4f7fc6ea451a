"""Real kill -9 in a payment, and a new release of its tool before the next life: it is paid once, whoever obeys.

The world outside is a file that nobody can take back. The model is one that calls again when it is told to.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Scripted, Settings, ToolCall, tool
from holdfast.flow.turns.tool_calls import CHECK_FIRST, ToolCallSettler

QUICK = Settings(lease_ms=500)
CHANGED = {"order": 17, "amount": 100, "note": "half"}
Made = Callable[[Path, bool], Any]


def obeys(pack: Any) -> Any:
    results = [one for message in pack.messages for one in message.tool_results]
    if not results:
        return {"name": "pay", "arguments": {"order": 17, "amount": 240}}
    if "Correct them and call again" in str(results[-1].result):
        return {"name": "pay", "arguments": {"order": 17, "amount": 100}}
    return "Done."


def pays(folder: Path, key: str, dies: bool) -> str:
    with open(folder / "paid.txt", "ab", buffering=0) as out:
        out.write(f"{key}\n".encode())
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def with_a_note(folder: Path, dies: bool) -> Any:
    @tool(needs_approval=lambda amount: amount > 100, if_interrupted="retry")
    def pay(order: int, amount: int, call: ToolCall, note: str = "") -> str:
        """Pay. Idempotent by its key."""
        return pays(folder, call.key, dies)

    return pay


def without(folder: Path, dies: bool) -> Any:
    @tool(needs_approval=lambda amount: amount > 100, if_interrupted="retry")
    def pay(order: int, amount: int, call: ToolCall) -> str:
        """Pay. Idempotent by its key."""
        return pays(folder, call.key, dies)

    return pay


def renamed(folder: Path, dies: bool) -> Any:
    @tool
    def send_money(order: int, amount: int) -> str:
        """Another tool: the old one is gone."""
        return "sent"

    return send_money


def send(folder: Path, made: Made, *, dies: bool = False, answer: dict[str, Any] | None = None) -> Any:
    with holdfast.open(folder / "a.db", durability="fast", settings=QUICK) as hf:
        agent = hf.agent("clerk", model=Scripted(obeys), tools=[made(folder, dies)], history=False)
        if answer is not None:
            (question,) = hf.questions()
            hf.answer(question.id, **answer)
        reply = agent.send("s", "Refund 17.", key="k")
        results = [one for message in hf.session("s").messages() for one in message.tool_results]
        return reply, results


def killed(folder: Path, answer: dict[str, Any] | None) -> None:
    """A life that ends in the payment itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forking beside threads.
        child = os.fork()
    if child == 0:
        try:
            send(folder, with_a_note, dies=True, answer=answer)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it died in the payment"


def paid(folder: Path) -> list[str]:
    return (folder / "paid.txt").read_text().split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a payment was approved with other arguments, begun, and killed."""
    reply, _ = send(tmp_path, with_a_note)
    assert reply.questions[0].reason == 'pay(17, 240, note=""): may it run?'
    killed(tmp_path, {"approve": True, "args": CHANGED})
    assert len(paid(tmp_path)) == 1
    return tmp_path


@pytest.mark.parametrize("release", [without, renamed])
def test_after_a_release_it_is_asked_about_and_paid_once(folder: Path, release: Made) -> None:
    reply, results = send(folder, release)
    assert (reply.status, results, len(paid(folder))) == ("waiting", [], 1)
    assert reply.questions[0].reason.startswith("pay(17, 100, half) may have run, and ")
    reply, results = send(folder, release, answer={"approve": False})
    assert (reply.text, len(paid(folder))) == ("Done.", 1)
    assert [CHECK_FIRST in one.result for one in results] == [True]


def test_a_yes_with_arguments_that_fit_pays_under_the_same_key(folder: Path) -> None:
    send(folder, without)
    with pytest.raises(holdfast.errors.InvalidValue, match="note"):
        send(folder, without, answer={"approve": True, "args": CHANGED})
    reply, results = send(folder, without, answer={"approve": True, "args": {"order": 17, "amount": 100}})
    assert (reply.text, len(results)) == ("Done.", 1)
    assert (len(paid(folder)), len(set(paid(folder)))) == (2, 1), "the bank sees one key, so that it pays once"


def test_the_same_release_goes_on_under_the_same_key(folder: Path) -> None:
    reply, _ = send(folder, with_a_note)
    assert reply.text == "Done."
    assert (len(paid(folder)), len(set(paid(folder)))) == (2, 1)


def test_without_the_check_it_is_paid_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToolCallSettler, "_find_misfit", lambda self, one: None)
    reply, _ = send(folder, without)
    assert reply.text == "Done."
    assert len(set(paid(folder))) == 2, "two keys: no bank can tell that it is the same"
