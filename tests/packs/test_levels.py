"""Levels of compaction: each is a floor, the first that fits is taken, and none of them spoils what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from holdfast import Frame, Holdfast, Session, Settings
from holdfast.core.packs.tidy import lighten_text
from holdfast.core.sessions.tokens import OTHER, message_tokens
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.records.messages import Message
from tests.packs import kinds_of_text
from tests.packs.pack_rules import MARKER
from tests.packs.worlds import LEVELS, PLENTY, PRIORITIES, WIDE

FLAT = "\n\n\n\n"
CODE = {
    "python": f"def f(x):\n    return x  {FLAT}f(1)\n",
    "python without indents": f'TEXT = """\nfirst  {FLAT}second\n"""\nprint(TEXT)\n',
    "a session of python": f">>> f(1)  \n1{FLAT}>>> f(2)\n",
    "shell": f"cd /tmp  {FLAT}ls --all\n",
    "a text within shell": f"cat <<EOF\na  {FLAT}b\nEOF\n",
    "javascript": f"const a = `x  {FLAT}y`\n",
    "rust": f"fn main() {{  {FLAT}}}\n",
    "lisp": f"(define x 1)  {FLAT}(display x)\n",
    "sql": f"INSERT INTO t VALUES ('a  {FLAT}b')",
    "a query": f"SELECT a  \nFROM t{FLAT}WHERE b > 1",
    "makefile": f"all:\n\techo hi  {FLAT}",
    "dockerfile": f"FROM x  {FLAT}RUN y \\\n && z\n",
    "a diff": f"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b  \n+c\n \n{FLAT}",
    "a diff without its head": f"2c2\n< old  \n---\n> new  {FLAT}",
    "yaml": f"name: x  \non: push{FLAT}jobs: none\n",
    "nested yaml": f"on:\n  push:  {FLAT}jobs: x\n",
    "a list of yaml": f"- one  \n- two{FLAT}- three\n",
    "a text within yaml": f"script: |\n  a  \n{FLAT}  b\n",
    "json": f'{{"a": 1,  {FLAT}"b": 2}}',
    "lines of json": f'{{"a": 1}}  {FLAT}{{"b": 2}}\n',
    "toml": f'title = "x"  {FLAT}owner = "y"\n',
    "ini": f"[a]\nx = 1  {FLAT}y = 2\n",
    "environment": f"A=1  {FLAT}B=2\n",
    "columns by tabs": f"name\tage\tnote\nann\t3\t{FLAT}bob\t\t\n",
    "columns by commas": f"name,age,note\nann,3, {FLAT}bob,,\n",
    "columns by width": f"name   age   {FLAT}ann    3     \n",
    "html": f"<p>a  {FLAT}b</p>\n",
    "a table": f"| a | b |  \n|---|---|{FLAT}| 1 | 2 |\n",
    "tex": f"\\begin{{verbatim}}\na  {FLAT}b\n\\end{{verbatim}}\n",
    "a fence": f"```\na  {FLAT}b\n```",
    "a fence that is not closed": f"~~~\na  {FLAT}b\n",
}
PROSE = "I would like to fly to Seattle.   \n\n\n\nThank you very much for all that!\t\nI will see you there soon."
TIDY = "I would like to fly to Seattle.\n\nThank you very much for all that!\nI will see you there soon."


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


@pytest.fixture
def chat(hf: Holdfast) -> Session:
    return hf.session("s", model="gpt-4o")


def texts(pack: holdfast.ContextPack) -> list[str]:
    return [message.text for message in pack.messages]


# light


@pytest.mark.parametrize("kind", CODE)
@pytest.mark.parametrize("level", ["light", "moderate"])
def test_code_and_data_are_shown_byte_for_byte(chat: Session, kind: str, level: str) -> None:
    said = chat.append([CODE[kind], {"role": "assistant", "content": CODE[kind]}, "the newest"])
    pack = chat.pack(10_000, min_compaction=level)
    assert texts(pack) == [message.text for message in said]
    assert pack.level == "none"  # What was not done is not reported.


def test_long_code_is_not_abbreviated(chat: Session) -> None:
    code = "def f():\n    return 1  \n\n\n\n" * 1_000
    chat.append([code, "the newest"])
    assert texts(chat.pack(PLENTY, min_compaction="light")) == [code, "the newest"]


@pytest.mark.parametrize("kind", kinds_of_text.OTHER)
def test_long_texts_that_are_not_plainly_prose_stay_as_they_are(kind: str) -> None:
    for text in (kinds_of_text.long(kinds_of_text.OTHER[kind]), kinds_of_text.spaced(kinds_of_text.OTHER[kind])):
        assert lighten_text(text, 8_000, "m1") == (text, 0)


@pytest.mark.parametrize("kind", kinds_of_text.PROSE)
def test_long_prose_of_any_kind_keeps_its_ends(kind: str) -> None:
    text = kinds_of_text.long(kinds_of_text.PROSE[kind])
    shown, left_out = lighten_text(text, 8_000, "m1")
    assert left_out == len(text) - 8_000
    assert shown == f"{text[:4_000]}[… {left_out} characters left out: m1 …]{text[-4_000:]}"
    assert lighten_text(kinds_of_text.spaced(kinds_of_text.PROSE[kind]), PLENTY, None) == (text, 0)


def test_telling_prose_takes_no_longer_for_odd_texts() -> None:
    odd = ("a \t", "”", "a'", "Word ", "(", ".", '!"', "*", "A. ", "A.B", "\n", "。", "x(")
    begun = time.perf_counter()
    for text in odd:
        lighten_text("A " + text * (100_000 // len(text)) + "b", 8_000, None)
    assert time.perf_counter() - begun < 10  # What grows with the square of its length takes minutes.


def test_prose_is_tidied_around_fences_and_only_there(chat: Session) -> None:
    fence = "```python\nx = 1  \n\n\n\ny = 2\n```"
    chat.append([PROSE, f"{PROSE}\n{fence}\n{PROSE}", PROSE])
    light = chat.pack(10_000, min_compaction="light")
    assert texts(light) == [TIDY, f"{TIDY}\n{fence}\n{TIDY}", PROSE]
    assert light.shortened == 0
    assert texts(chat.pack(10_000))[0] == PROSE


def test_long_prose_keeps_its_ends_around_a_marker_with_its_name_and_size(hf: Holdfast, chat: Session) -> None:
    prose = "We talked about the usual things over lunch. " * 400
    said = chat.append([prose, prose])
    shown, newest = texts(chat.pack(PLENTY, min_compaction="light"))
    marked = MARKER.search(shown)
    assert marked is not None
    assert marked[2] == f"m{said[0].version}"
    assert len(shown) - len(marked[0]) + int(marked[1]) == len(prose)
    assert (prose.startswith(shown[: marked.start()]), prose.endswith(shown[marked.end() :])) == (True, True)
    assert newest == prose
    assert len(shown) - len(marked[0]) == hf.env.settings.abbreviate_chars


@pytest.mark.parametrize("kind", [kind for kind in CODE if "fence" not in kind])
def test_whatever_is_in_a_fence_stays_as_it_is(kind: str) -> None:
    fence = f"~~~\n{CODE[kind]}\n~~~"
    assert lighten_text(f"{PROSE}\n{fence}\n{PROSE}", PLENTY, None) == (f"{TIDY}\n{fence}\n{TIDY}", 0)


# the others


def working(hf: Holdfast, *, goal: str = "Plan it.", body: str = "words of evidence " * 8) -> Frame:
    """A frame with a conversation and evidence of every priority."""
    frame = hf.frame(goal, session="s", limits=WIDE)
    frame.open()
    for nth in range(8):
        frame.append([f"asked {nth} " + "some words " * 8, {"role": "assistant", "content": f"said {nth}"}])
    for priority in PRIORITIES:
        frame.attach("document", handle=priority, body=f"{priority} {body}", priority=priority)
    return frame


def test_the_first_level_that_fits_is_taken_and_none_shows_everything_unchanged(hf: Holdfast, chat: Session) -> None:
    frame = working(hf)
    whole = frame.pack(PLENTY)
    assert whole.level == "none"
    assert [one.text for one in whole.conversation.messages] == [one.text for one in frame.messages()]
    assert {one.handle_id for one in whole.evidence} == {*PRIORITIES}
    assert frame.pack(whole.tokens).digest == whole.digest
    least = frame.pack(PLENTY, min_compaction="critical").tokens
    levels = [frame.pack(budget).level for budget in range(whole.tokens, least - 20, -10)]
    assert [LEVELS.index(level) for level in levels] == sorted(LEVELS.index(level) for level in levels)
    assert {*levels} == {"none", "moderate", "aggressive"}


@pytest.mark.parametrize("floor", LEVELS)
def test_a_floor_is_applied_although_all_would_fit(hf: Holdfast, chat: Session, floor: str) -> None:
    frame = working(hf)
    chat.append([PROSE, "the newest"])
    chat.compact(keep=14, summarizer=lambda *_, **__: "a summary")
    pack = frame.pack(PLENTY, min_compaction=floor)
    shown = {one.handle_id for one in pack.evidence}
    assert pack.level == floor
    expected = {"aggressive": {"critical", "high", "medium"}, "critical": {"critical"}}.get(floor, {*PRIORITIES})
    assert shown == expected
    reasons = {one.id: one.reason for one in pack.decisions if one.outcome == "omitted" and one.kind == "evidence"}
    assert reasons == dict.fromkeys({*PRIORITIES} - expected, "level")
    assert [one.window for one in pack.summaries] == {
        "moderate": [False, True],
        "aggressive": [False, True],
        "critical": [],
    }.get(floor, [False])


def test_moderate_lets_older_rounds_go_and_keeps_what_is_critical_whole(hf: Holdfast, chat: Session) -> None:
    frame = working(hf)
    pack = frame.pack(300)
    assert pack.level == "moderate"
    assert pack.shortened == 0
    assert pack.conversation.truncated_count > 0
    assert f"[{pack.conversation.truncated_count} earlier messages are not shown" in "".join(texts(pack))
    assert not any(one.truncated for one in pack.evidence)


def test_aggressive_shortens_what_is_critical_with_a_marker_that_names_it(hf: Holdfast, chat: Session) -> None:
    frame = working(hf, body="words of evidence " * 80)
    pack = frame.pack(250, exclude=["high", "medium"])
    assert pack.level == "aggressive"
    (evidence,) = pack.evidence
    marked = MARKER.search(evidence.content)
    assert evidence.truncated
    assert marked is not None
    assert marked[2] == "critical"


def test_critical_keeps_the_newest_round_what_is_pinned_and_the_last_breadcrumb(hf: Holdfast, chat: Session) -> None:
    outer = working(hf, goal="The outer work")
    with outer.frame("The inner work, with a goal that takes more than forty characters", limits=WIDE) as inner:
        inner.append("pinned words", policy="pinned")
        inner.append(["older words", "the newest words"])
        inner.attach("document", handle="h", body="evidence", priority="critical")
        inner.attach("document", handle="i", body="more", priority="high")
        pack = inner.pack(PLENTY, min_compaction="critical")
        words = "\n".join(texts(pack))
        assert [one in words for one in ("pinned words", "the newest words", "evidence", "The inner work")] == [
            True
        ] * 4
        assert [one in words for one in ("older words", "more\n", "The outer work", "forty characters")] == [False] * 4
        assert [crumb.goal[:9] for crumb in pack.breadcrumbs] == ["The inner"]
        assert [one.id for one in pack.decisions if one.reason == "level"] == ["i"]


@pytest.mark.parametrize("most", [50, 20])
def test_a_breadcrumb_takes_no_more_than_its_share(most: int) -> None:
    with ExitStack() as blocks:
        hf = blocks.enter_context(holdfast.open("memory:", settings=Settings(breadcrumb_tokens=most)))
        one = blocks.enter_context(hf.frame("first " * 300, limits=WIDE))
        two = blocks.enter_context(one.frame("日本 " * 300, limits=WIDE))
        pack = blocks.enter_context(two.frame("short", limits=WIDE)).pack(5_000)
    shown = next(segment for segment in pack.segments if segment.kind == "breadcrumb").text
    lines = re.findall(r"^\d\. .*$", shown, re.MULTILINE)
    assert [line[:8] for line in lines] == ["1. first", "2. 日本 日本", "3. short"]
    count = resolve_tokenizer(pack.tokenizer).count
    sizes = [message_tokens(Message(role="user", content=line), count, OTHER) for line in lines]
    assert max(sizes) <= most
    assert min(sizes[:2]) > most - 10
    assert lines[0].endswith("…")
