"""Names of what was left out, and pages of it: pure, and whole when they are put together."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.client.history_tools import MIN_TOKENS
from holdfast.core.packs.fences import FenceMarks
from holdfast.core.packs.history_tools import HistoryPiece, PageRequest, render_page
from holdfast.core.packs.segments import HandleRef, parse_handle, stretch_handle
from holdfast.errors import InvalidValue
from tests.packs.history_kit import ONWARDS, by_fours, texts
from tests.scale import volume


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("m57", "m57"),
        (" [M57] ", "m57"),
        ("`m57`.", "m57"),
        ("m3-m9", "m3-m9"),
        ("m9 - 3", "m3-m9"),
        ("m3…m9", "m3-m9"),
        ("m3 to m9", "m3-m9"),
        ("m5-m5", "m5"),
        ("s12", "s12"),
        ("m0", "m0"),
        ("m1234567890123456", "m1234567890123456"),
        ("plan-b", "plan-b"),
    ],
)
def test_names_are_read_as_models_write_them(text: str, name: str) -> None:
    assert str(parse_handle(text)) == name


def test_what_is_no_version_is_an_id() -> None:
    assert parse_handle("m0") == HandleRef(kind="id", id="m0")
    assert parse_handle("m1234567890123456").kind == "id"


@pytest.mark.parametrize("wrong", ["", "  ", "[]", "x" * 300, None, 57, ["m1"]])
def test_what_cannot_be_a_name_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="m57"):
        parse_handle(wrong)


@given(st.integers(1, 10**14), st.integers(1, 10**14))
def test_a_name_reads_back_as_what_it_was_made_of(one: int, other: int) -> None:
    first, last = sorted((one, other))
    read = parse_handle(stretch_handle(first, last))
    assert (read.first, read.last) == (first, last)
    assert str(parse_handle(str(read))) == str(read)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1, max_size=900)
MARK = FenceMarks(SimpleNamespace(secret=b"secret"), "t")


@settings(max_examples=volume(60, 2_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(MIN_TOKENS, 600), st.booleans())
def test_pages_fit_their_tokens_and_give_every_character_once(said: list[str], most: int, named: bool) -> None:
    last, total = len(said), sum(map(len, said))
    pieces = [
        HistoryPiece(
            name=f"m{n}", speaker="user", text=text, trust="user", next_name=stretch_handle(n, last) if named else None
        )
        for n, text in enumerate(said, 1)
    ]
    asked, offset, seen = stretch_handle(1, last), 0, ""
    while True:
        first = parse_handle(asked).first if named else 1
        answer = render_page(
            iter(pieces[first - 1 :]), PageRequest(name=asked, offset=offset, max_tokens=most), len, MARK
        )
        assert len(answer) <= most
        assert texts(answer)
        seen += "".join(texts(answer))
        following = ONWARDS.search(answer.rpartition("</data")[2])
        if following is None:
            break
        hidden, asked, offset = following[1], following[2], int(following[3] or 0)
        assert hidden is None or int(hidden) == total - len(seen)
    assert seen == "".join(said)


def test_a_page_looks_at_no_more_pieces_than_it_can_show() -> None:
    taken: list[int] = []

    def pieces() -> Iterator[HistoryPiece]:
        for number in range(1, 10_000):
            taken.append(number)
            yield HistoryPiece(name=f"m{number}", speaker="user", text="word " * 50, trust="user")

    render_page(pieces(), PageRequest(name="m1-m9999", offset=0, max_tokens=400), by_fours, MARK)
    assert len(taken) < 50
