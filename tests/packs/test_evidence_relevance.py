"""Evidence answers a question by its words, whatever stands around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Frame
from holdfast.records.frames import Limits
from holdfast.testing.clock import FrozenClock

WIDE = Limits(context_tokens=50_000)


@pytest.fixture
def frame() -> Iterator[Frame]:
    """Nothing in it is newer than anything else."""
    with holdfast.open("memory:", clock=FrozenClock()) as hf, hf.frame("Work", limits=WIDE) as opened:
        yield opened


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("nuts", "She must not eat nuts."),
        ("nuts", "NUTS, of any kind"),
        ("Are there nuts?", "(nuts)"),
        ("Nuts!", "what holds nuts_and_seeds"),
        ("cr\u00e8me", "Creme br\u00fbl\u00e9e"),
        ("\u6771\u4eac", "\u6771\u4eac\u90fd\u306e\u5730\u56f3"),
    ],
)
def test_words_answer_a_question_whatever_stands_around_them(frame: Frame, query: str, body: str) -> None:
    frame.attach("document", handle="answers", body=body)
    frame.attach("document", handle="other", body="something else")
    assert [one.handle_id for one in frame.pack(9_000).evidence] == ["other", "answers"]
    assert [one.handle_id for one in frame.pack(9_000, query=query).evidence] == ["answers", "other"]


def test_a_part_of_a_word_is_no_answer(frame: Frame) -> None:
    frame.attach("document", handle="peanuts", body="peanuts")
    frame.attach("document", handle="other", body="something else")
    assert [one.handle_id for one in frame.pack(9_000, query="nuts").evidence] == ["other", "peanuts"]
