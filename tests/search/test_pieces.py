"""Long texts are embedded in pieces: nothing is left out, and one apt sentence among many others is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.core.search.documents import INDEXED_CHARS, MAX_PIECES, PIECE_CHARS, split_pieces
from holdfast.flow.state import vectors
from tests.scale import seeded, volume


def test_pieces_are_the_whole_text_in_few_parts_of_about_one_length() -> None:
    chance = seeded("pieces")
    for _ in range(volume(200, 5_000)):
        words = ["x" * chance.choice((1, 5, 12, 400)) for _ in range(chance.randrange(1, 200))]
        text = chance.choice((" ", "\n", "")).join(words)[:INDEXED_CHARS]
        found = split_pieces(text)
        assert "".join("".join(found).split()) == "".join(text.split())
        assert len(found) <= 2 * MAX_PIECES
        assert max(map(len, found)) <= max(2 * PIECE_CHARS, -(-len(text) // MAX_PIECES))
        if len(text) <= PIECE_CHARS:
            assert found == [text]


def by_vowels(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(letter)) + 0.01 for letter in "aeiou"] for text in texts]


def _first_found(folder: Path) -> str:
    with holdfast.open(folder / "a.db", embedder=by_vowels) as hf:
        chat = hf.session("s")
        chat.append("eeee iiii " * 90 + "uuuu uuuu " * 25 + "aaaa oooo " * 90)
        chat.append("eeee uuuu oooo iiii aaaa")
        return chat.search("uuuuuu", limit=1)[0].value.text


def test_one_apt_sentence_in_a_long_message_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(_first_found(tmp_path)) > 1_000
    monkeypatch.setattr(vectors, "split_pieces", lambda text: [text])
    (tmp_path / "whole").mkdir()
    assert len(_first_found(tmp_path / "whole")) < 100, "as a whole it means a little of everything"
