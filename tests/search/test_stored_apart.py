"""Whether a text lies in its event, in the database or in a file: what is found, and how, is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Settings
from holdfast.core.search import documents, words
from holdfast.journal.memory import journal as memory_journal
from holdfast.journal.sqlite import search
from tests.scale import seeded, volume
from tests.search.test_large_messages import opened

APART = Settings(inline_text_bytes=150, inline_artifact_bytes=400)
"""Nearly every text apart, and some of them in files."""


def speech(chance: Any) -> list[dict[str, Any]]:
    """A conversation in which texts, parts and results are of all sizes."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty"]

    def text() -> str:
        # Whether a message only asks is judged by what lies in its event: a question is short.
        end = chance.choice(["", "?"]) if (count := chance.choice([2, 8, 40, 120])) < 10 else ""
        return " ".join(chance.choices([*words, "of", "the", "Über", "東京"], k=count)) + end

    found: list[dict[str, Any]] = []
    for number in range(chance.randrange(3, 9)):
        kind = chance.randrange(3)
        if kind == 2:
            calls = [{"id": f"{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
            found.append({"role": "assistant", "content": chance.choice([None, text()]), "tool_calls": calls})
            found.append({"role": "tool", "tool_call_id": f"{number}", "content": text()})
        else:
            parts = [{"type": "text", "text": text().rstrip("?")} for _ in range(chance.randrange(1, 4))]
            found.append({"role": "user", "content": parts if kind else text()})
    return found


def answers(url: Any, said: list[dict[str, Any]], settings: Settings | None) -> list[object]:
    with opened(url, settings=settings) as hf:
        chat = hf.session("s")
        for message in said:
            chat.append(message)
        found: list[object] = []
        for word in ("amber", "birch fjord", "東京", "uber grove"):
            found.append([(one.value.version, round(one.score, 9), one.snippet) for one in chat.search(word)])
            found.append(chat.packs.history_tools().run("search_history", {"query": word}).splitlines()[2:-1])
        return found


def check_no_difference(folder: Path, chance: Any, times: int) -> None:
    for number in range(times):
        said = speech(chance)
        known = answers("memory:", said, None)
        assert answers("memory:", said, APART) == known, said
        assert answers(folder / f"{number}.db", said, APART) == known, said


def test_nobody_sees_the_difference(tmp_path: Path) -> None:
    check_no_difference(tmp_path, seeded("large messages"), volume(6, 300))


def nothing_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(documents, "decode_beginning", lambda body: "")
    for module in (search, memory_journal):
        patch.setattr(module, "decode_beginning", lambda body: "")


def results_are_left_out(patch: pytest.MonkeyPatch) -> None:
    known = words._content_texts
    patch.setattr(words, "_content_texts", lambda content, beginning: list(known(content, beginning))[:1])


@pytest.mark.parametrize("plant", [nothing_is_read, results_are_left_out])
def test_a_difference_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_no_difference(tmp_path, seeded("large messages"), 20)
