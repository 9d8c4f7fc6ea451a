"""Bugs that agents could have, planted one by one: the test of each promise fails with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import holdfast
from holdfast.flow.turns import limits, turns
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.listeners import Tail
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tasks import ListenerHub
from tests.turns import test_agent_sharing, test_agent_streams, test_agent_tools, test_agents, test_bad_input


def tells_again(self: Any, place: Any, until: Any) -> None:
    """What was said is kept although its reply is written."""
    self._reached[place] = until
    for ear in self._ears.get(place, ()):
        ear.put_nowait(until)


def goes_beyond(self: Any, turn: Any, *, again: bool = False) -> None:
    """A listener to one turn does not know where it ends."""
    self._thread, self._actor = self._versions_before(turn)


async def configures_nobody(self: Any) -> bool:
    """Instructions are written before it is one's turn, as if the conversation were new."""
    return False


async def believes_the_exception(self: Any, step: Any, *outcome: Any, **how: Any) -> None:
    """A tool that ran into another's question counts as one that waits."""
    step.answered = True


def _folder() -> Path:
    return Path(mkdtemp(dir=FOLDERS[-1]))


FOLDERS: list[Path] = []
Check = Callable[[holdfast.Holdfast], None]
PLANTS: list[tuple[Any, str, Any, Check]] = [
    (turns, "find_last_reply", lambda *where: None, test_agents.test_too_many_loops_stop_it),
    (limits, "_count_failures", lambda *given: (0, 0), test_bad_input.test_a_model_that_is_away_for_a_minute),
    (
        ListenerHub,
        "publish_versions",
        tells_again,
        lambda hf: test_agent_streams.test_words_of_a_reply_that_is_written_are_not_told_again(),
    ),
    (Tail, "follow_turn", goes_beyond, test_agent_streams.test_the_same_key_is_heard_again_from_the_beginning),
    (
        Tail,
        "is_idle",
        lambda self: True,
        lambda hf: test_agent_streams.test_another_client_hears_every_event_that_is_in_the_journal_and_no_delta(
            _folder()
        ),
    ),
    (
        AgentSend,
        "_has_thread",
        configures_nobody,
        lambda hf: test_agent_sharing.test_who_waits_in_line_does_not_change_the_instructions_of_who_works(),
    ),
    (
        TurnDriver,
        "_journal_outcome",
        believes_the_exception,
        test_agent_tools.test_a_limit_on_depth_is_the_tools_problem,
    ),
]


@pytest.mark.parametrize(("where", "name", "bug", "check"), PLANTS, ids=[plant[1] for plant in PLANTS])
def test_a_planted_bug_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: type, name: str, bug: Any, check: Check
) -> None:
    FOLDERS.append(tmp_path)
    monkeypatch.setattr("holdfast.runtime.listeners.TAIL_POLL_SECONDS", 0.01)
    with holdfast.open("memory:") as hf:
        check(hf)
    with holdfast.open("memory:") as hf:
        monkeypatch.setattr(where, name, bug)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(hf)
