"""A key stands for all that was said with it, in its order. Anything else is refused, and nothing is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, Scripted
from holdfast.errors import KeyReused
from holdfast.flow.turns import turns
from holdfast.records.messages import Message
from tests.backends import IN_MEMORY
from tests.scale import volume
from tests.turns.loops import SESSION, leave_at, replies, spoken, take

Holdfast = holdfast.Holdfast
KEY = "k"
ONE, TWO = {"role": "user", "content": "Pay 1."}, {"role": "user", "content": "Pay 2."}
IMAGE = {"type": "image", "data": b"one picture", "media_type": "image/png"}
OTHER_IMAGE = {"type": "image", "data": b"two picture", "media_type": "image/png"}
Send = Callable[[Holdfast, Any], Any]


def with_images(*images: dict[str, Any]) -> Message:
    return Message(role="user", content=[{"type": "text", "text": "See."}, *images])


def linked(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": url}}]
    return {"role": "user", "content": parts}


OTHERS = {
    "shorter": ([ONE, TWO], [ONE]),
    "only the last": ([ONE, TWO], [TWO]),
    "longer": ([ONE], [ONE, TWO]),
    "longer in front": ([TWO], [ONE, TWO]),
    "reordered": ([ONE, TWO], [TWO, ONE]),
    "twice": ([ONE], [ONE, ONE]),
    "once": ([ONE, ONE], [ONE]),
    "other words": ([ONE, TWO], [ONE, {"role": "user", "content": "Pay 3."}]),
    "another role": ([ONE, TWO], [{"role": "system", "content": "Pay 1."}, TWO]),
    "another image": (with_images(IMAGE), with_images(OTHER_IMAGE)),
    "reordered images": (with_images(IMAGE, OTHER_IMAGE), with_images(OTHER_IMAGE, IMAGE)),
    "an image from elsewhere": (linked("https://a.example/1.png"), linked("https://a.example/2.png")),
    "without its image": (with_images(IMAGE), with_images()),
}


def by_turn(hf: Holdfast, given: Any) -> Any:
    return take(hf, given, lambda step: step.done("Paid."), key=KEY).text


def by_agent(hf: Holdfast, given: Any) -> Any:
    return hf.agent("a", model=Scripted(["Paid."]), history=False).send(SESSION, given, key=KEY).text


def by_stream(hf: Holdfast, given: Any) -> Any:
    events = list(hf.agent("a", model=Scripted(["Paid."]), history=False).stream(SESSION, given, key=KEY))
    return next(event.text for event in events if event.kind == "reply")


SENDS: list[Send] = [by_turn, by_agent, by_stream]


def refused(hf: Holdfast, send: Send, given: Any) -> None:
    before = hf.journal.position()
    with pytest.raises(KeyReused, match="other words"):
        send(hf, given)
    assert hf.journal.position() == before


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("how", OTHERS)
@IN_MEMORY
def test_other_messages_under_a_used_key_are_refused_and_equal_ones_are_not(hf: Holdfast, how: str, send: Send) -> None:
    first, other = OTHERS[how]
    assert send(hf, first) == "Paid."
    refused(hf, send, other)
    before = hf.journal.position()
    assert send(hf, first) == "Paid."
    assert hf.journal.position() == before, "what is done is not done again"


def test_a_turn_that_is_live_is_taken_up_with_all_that_was_said_and_not_with_less(hf: Holdfast) -> None:
    leave_at(hf, [ONE, TWO], CallModel, replies(), key=KEY)
    refused(hf, by_turn, [ONE])
    assert by_turn(hf, [ONE, TWO]) == "Paid."
    assert [text for role, text in spoken(hf) if role == "user"] == ["Pay 1.", "Pay 2."]


def test_the_key_of_a_message_that_joined_stands_for_that_one_alone(hf: Holdfast) -> None:
    leave_at(hf, "Hello", CallModel, replies(), key="first")
    leave_at(hf, [ONE, TWO], CallModel, replies(), key=KEY)
    hf.session(SESSION).append("Somebody else's words.")
    refused(hf, by_turn, [ONE])
    refused(hf, by_turn, [TWO])
    refused(hf, by_turn, [ONE, TWO, {"role": "user", "content": "Somebody else's words."}])
    with pytest.raises(KeyReused):
        take(hf, ["Hello", ONE, TWO], replies(), key="first")
    assert by_turn(hf, [ONE, TWO]) == "Paid."
    assert take(hf, "Hello", replies(), key="first").text == "Paid."


def test_what_was_noted_in_a_turn_at_once_does_not_belong_to_its_key(hf: Holdfast) -> None:
    with hf.session(SESSION).turn([ONE], key=KEY) as turn:
        turn.frame.append(TWO)
    refused(hf, by_turn, [ONE, TWO])
    assert by_turn(hf, [ONE]) == "Paid."


def test_the_same_holds_after_a_restart_and_in_a_copy(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "a.db"), durability="fast") as hf:
        assert by_turn(hf, [ONE, TWO]) == "Paid."
        hf.journal.export(tmp_path / "all.jsonl")
    with holdfast.open(str(tmp_path / "a.db")) as again, holdfast.open(str(tmp_path / "b.db")) as copy:
        copy.journal.import_(tmp_path / "all.jsonl")
        for hf in (again, copy):
            for other in ([ONE], [TWO, ONE], [ONE, TWO, TWO]):
                refused(hf, by_turn, other)
            assert by_turn(hf, [ONE, TWO]) == "Paid."


def test_the_same_holds_in_a_conversation_that_began_anew(hf: Holdfast) -> None:
    take(hf, "Before.", replies("Yes."))
    hf.session(SESSION).reset()
    assert by_turn(hf, [ONE, TWO]) == "Paid."
    refused(hf, by_turn, [ONE])
    hf.session(SESSION).reset()
    refused(hf, by_turn, [ONE])
    assert by_turn(hf, [ONE, TWO]) == "Paid."


def test_words_that_were_erased_are_not_compared_but_how_many_there_were_is(hf: Holdfast) -> None:
    eve = hf.as_user("eve")
    assert by_turn(eve, [ONE, TWO]) == "Paid."
    hf.journal.erase("eve")
    assert by_turn(eve, [ONE, TWO]) == "[erased]"
    assert by_turn(eve, [TWO, {"role": "user", "content": "Pay 3."}]) == "[erased]", "nobody can tell"
    for other in ([ONE], [ONE, TWO, TWO], [{"role": "system", "content": "Pay 1."}, TWO]):
        refused(eve, by_turn, other)


def test_words_that_are_redacted_are_not_compared_but_how_many_there_are_is() -> None:
    with holdfast.open("memory:", redact=lambda text: text.replace("1", "x")) as hf:
        assert by_turn(hf, [ONE, TWO]) == "Paid."
        assert by_turn(hf, [ONE, TWO]) == "Paid."
        refused(hf, by_turn, [ONE])


def test_large_texts_are_compared_as_well(hf: Holdfast) -> None:
    large = {"role": "user", "content": "a" * 300_000}
    assert by_turn(hf, [large, ONE]) == "Paid."
    refused(hf, by_turn, [{"role": "user", "content": "a" * 299_999}, ONE])
    refused(hf, by_turn, [large])
    assert by_turn(hf, [large, ONE]) == "Paid."


def test_a_key_without_a_message_goes_on_with_its_turn(hf: Holdfast) -> None:
    leave_at(hf, [ONE, TWO], CallModel, replies(), key=KEY)
    assert by_turn(hf, None) == "Paid."
    assert by_turn(hf, None) == "Paid."


@IN_MEMORY
def test_any_two_lists_are_the_same_turn_if_they_are_equal_and_only_then(hf: Holdfast) -> None:
    seed = random.randrange(2**32)
    made = random.Random(seed)
    words = [{"role": role, "content": text} for role in ("user", "system") for text in ("a", "b")]
    for number in range(volume(30, 3_000)):
        first, then = ([*made.choices(words, k=made.randrange(4)), ONE] for _ in range(2))
        key, session = f"k{number}", f"s{number}"
        take(hf, first, lambda step: step.done("Yes."), key=key, session=session)
        try:
            take(hf, then, replies(), key=key, session=session)
            accepted = True
        except KeyReused:
            accepted = False
        assert accepted == (first == then), (seed, first, then)


@IN_MEMORY
def test_a_comparison_of_the_beginning_alone_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    original = turns._read_append

    def begins(env: Any, line: str, version: int) -> Any:
        return original(env, line, version)[:1]

    monkeypatch.setattr(turns, "_read_append", begins)
    with pytest.raises((AssertionError, KeyReused, pytest.fail.Exception)):
        test_other_messages_under_a_used_key_are_refused_and_equal_ones_are_not(hf, "shorter", by_turn)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([{"type": "text", "text": "pay 1"}], [{"type": "text", "text": "pay 1000"}]),
        (
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}],
            "see",
        ),
    ],
)
def test_a_key_stands_for_all_that_was_said_with_it(hf: Holdfast, first: Any, then: Any) -> None:
    agent = hf.agent("a", model=Scripted(["One."]), history=False)
    agent.send(SESSION, {"role": "user", "content": first}, key="k")
    with pytest.raises(KeyReused):
        agent.send(SESSION, {"role": "user", "content": then}, key="k")
    assert agent.send(SESSION, {"role": "user", "content": first}, key="k").text == "One."
