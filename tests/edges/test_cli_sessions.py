"""`sessions`, `messages` and `fork`: what they show, what they keep from the terminal, and how they refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.cli import output
from holdfast.cli.main import main
from holdfast.cli.output import encode_json, escape_json, escape_text, shorten_text
from holdfast.cli.sessions import COLUMNS, MessagePage, format_role
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolCallResult
from holdfast.records.usage import Usage
from holdfast.system import SystemClock
from holdfast.testing.clock import FrozenClock

from .test_cli import BAD, Result, assert_one_clear_line, contents
from .test_cli_frames import HOLDFAST, on_a_terminal

Cli = Callable[..., Result]
HOSTILE = "red \x1b[31m and \u202e back\x9bwards \x07 [bold]x[/bold] [link=evil]y[/link]"
MINUTE = 60_000
NOBODY = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


class Made(NamedTuple):
    """What the journal of these tests holds."""

    path: Path
    ids: dict[str, str]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


def calling(*names: str) -> dict[str, Any]:
    """An assistant that asks for calls."""
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": '{"q": 1}'}} for name in names]
    return {"role": "assistant", "content": "Let me look.", "tool_calls": calls}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path, ids = tmp_path_factory.mktemp("original") / "agent.db", {}
    clock = FrozenClock(SystemClock().now_ms() - 60 * MINUTE)
    with holdfast.open(path, clock=clock, durability="fast") as hf:
        alice = hf.session("alice", title="Trip to Rome", model="gpt-5-mini", system="Be terse.")
        ids["first"] = alice.append("Find me a flight").id
        asked = alice.append(calling("search", "book", "wait"))
        ids["asked"] = asked.id
        search, book, _ = asked.tool_calls
        ids["search"], ids["book"], ids["wait"] = (call.id for call in asked.tool_calls)
        alice.append_result(search, {"flights": 3})
        gone = ToolCallResult(tool_call_id=book.id, result=INTERRUPTED_RESULT, is_error=True, interrupted=True)
        ids["torn"] = alice.append(Message(role="tool", tool_results=(gone,), synthetic=True)).id
        ids["cut"] = alice.append({"role": "assistant", "content": "I was just"}, partial=True).id
        used = Usage(input=1_000, output=234, cost=12_300_000)
        ids["last"] = alice.append(Message(role="assistant", content="Done.", usage=used), policy="pinned").id
        clock.advance(30 * MINUTE)
        ids["hostile"] = (
            hf.as_user("bea").session("bob").append(Message(role="user", content=HOSTILE, name="eve\x1b[2J")).id
        )
        clock.advance(10 * MINUTE)
        hf.session("done", title=HOSTILE).close()
        secret = hf.as_user("zoe").session("zoes")
        secret.append("Zoe's secret")
        secret.append_result(secret.append(calling("zoes_tool")).tool_calls[0], "Zoe's result")
        hf.journal.erase("zoe")
        hf.tenant("acme").session("theirs").append("Of another tenant")
    return Made(path, ids)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copy(original.path, tmp_path / "agent.db")
    return original._replace(path=tmp_path / "agent.db")


def shown_unsafely(text: str) -> list[str]:
    """What in an output could move a cursor, change a colour or turn the text around."""
    return [char for char in text.replace("\n", "") if not char.isprintable()]


def position(path: Path) -> int:
    """How much was ever written to a journal."""
    with holdfast.open(path) as hf:
        return hf.journal.position()


# sessions


def test_sessions_are_a_line_each_newest_first_with_sizes_and_costs(cli: Cli, made: Made) -> None:
    result = cli("sessions", made.path)
    header, *rows = result.out.splitlines()
    assert re.split("  +", header) == list(COLUMNS)
    assert [row.split()[0] for row in rows] == ["zoes", "done", "bob", "alice"]
    words = ["alice", "Trip to Rome", "open", "gpt-5-mini", "6", "1,234", "0.0123"]
    assert re.split("  +", rows[-1])[:-1] == words
    assert re.search(r"  (59 min.*|1 h.*) ago$", rows[-1])
    assert "closed" in rows[1]
    assert f"holdfast messages {made.path} zoes" in result.err


def test_a_session_without_a_title_is_known_by_its_first_words(cli: Cli, made: Made) -> None:
    shown = cli("sessions", made.path).out
    assert "red \\x1b[31m and \\u202e back\\x9bwards \\x07 [bold]x[/bold]" in shown
    assert "zoes     (erased)" in shown
    assert "Zoe" not in shown
    assert not shown_unsafely(shown)
    listed = {one["id"]: one for one in cli("sessions", made.path, "--json").json["sessions"]}
    assert (listed["alice"]["first_words"], listed["zoes"]["first_words"]) == (None, None)
    assert listed["bob"]["first_words"] == shorten_text(HOSTILE, 60)
    assert listed["done"]["title"] == HOSTILE


def test_sessions_as_json_have_exact_times(cli: Cli, made: Made) -> None:
    (alice,) = cli("sessions", made.path, "--title", "rome", "--json").json["sessions"]
    with holdfast.open(made.path) as hf:
        (info,) = hf.sessions(title="Rome")
    assert (alice["active_at"], alice["opened_at"]) == (info.active_at, info.opened_at)
    assert alice["tokens"] == 1_234
    assert alice["usage"] | {"input": 1_000, "cost": 12_300_000} == alice["usage"]
    assert 59 * MINUTE < alice["idle_ms"] < 65 * MINUTE


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--user", "bea"], ["bob"]),
        (["--user", "nobody"], []),
        (["--status", "closed"], ["done"]),
        (["--status", "open", "--limit", "2"], ["zoes", "bob"]),
        (["--order", "cost", "--limit", "1"], ["alice"]),
        (["--order", "title", "--title", "r"], ["done", "alice"]),
        (["--tenant", "acme"], ["theirs"]),
        (["--title", "nothing like it"], []),
    ],
)
def test_sessions_are_chosen_and_ordered(cli: Cli, made: Made, options: list[str], wanted: list[str]) -> None:
    listed = [one["id"] for one in cli("sessions", made.path, *options, "--json").json["sessions"]]
    assert listed == wanted
    shown = cli("sessions", made.path, *options)
    assert [row.split()[0] for row in shown.out.splitlines()[1:]] == listed
    assert listed or "No session matches" in shown.err


def test_any_number_of_sessions_is_listed_and_lines_up(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "many.db", durability="fast") as hf:
        for number in range(130):
            hf.session(f"s{number:03}", title="t")
    lines = cli("sessions", tmp_path / "many.db").out.splitlines()
    assert len(lines) == 131
    assert len({line.index(" open ") for line in lines[1:]}) == 1
    assert [line.split()[0] for line in lines[1:]] == [f"s{number:03}" for number in reversed(range(130))]


# messages


def test_messages_show_who_said_what_when_and_at_what_length(cli: Cli, made: Made) -> None:
    result = cli("messages", made.path, "alice")
    header, *rows = result.out.splitlines()
    assert header.split() == ["message", "time", "(UTC)", "role", "tokens", "marks", "text"]
    first = re.fullmatch(r"(\S{26})  (\S+ \S+)  (\w+) +(\d+)  +(.*)", rows[0])
    assert first is not None
    assert first.group(1, 3, 5) == (made.ids["first"], "user", "Find me a flight")
    with holdfast.open(made.path) as hf:
        tokens = [message.tokens for message in hf.session("alice", create=False)]
    assert int(first.group(4)) == tokens[0]
    assert len(rows) == len(tokens) == 6
    assert (result.code, result.err) == (0, "")


def test_calls_and_results_carry_the_same_mark(cli: Cli, made: Made) -> None:
    for option in ([], ["--full"]):
        shown = cli("messages", made.path, "alice", *option).out
        search, book, wait = (f"…{made.ids[name][-8:]}" for name in ("search", "book", "wait"))
        assert f'→ search({{"q": 1}})  {search}' in shown
        assert f'← search  {search}  {{"flights":3}}' in shown
        assert f"← book  {book}  interrupted: {INTERRUPTED_RESULT}" in shown
        assert f'→ wait({{"q": 1}})  {wait}  no result yet' in shown
        assert shown.count("no result yet") == 1
    # The call is on an earlier page: the mark still tells which one it was.
    assert f"← {search}  " in cli("messages", made.path, "alice", "--after", made.ids["asked"]).out
    # On a page that is not the last one, a result may well have come since.
    assert "no result yet" not in cli("messages", made.path, "alice", "--before", made.ids["torn"]).out


def test_what_is_odd_about_a_message_is_marked(cli: Cli, made: Made) -> None:
    rows = {row.split()[0]: row for row in cli("messages", made.path, "alice").out.splitlines()[1:]}
    assert "  partial  I was just" in re.sub("   +", "  ", rows[made.ids["cut"]])
    assert "  pinned  Done." in re.sub("   +", "  ", rows[made.ids["last"]])
    assert "synthetic, interrupted" in rows[made.ids["torn"]]
    erased = cli("messages", made.path, "zoes").out
    assert erased.count("erased  ") == 3
    assert "(erased)\n" in erased
    assert "→ (erased)  …" in erased
    assert "Zoe" not in erased
    assert "zoes_tool" not in erased


def test_nothing_in_a_message_reaches_the_terminal_as_a_command(cli: Cli, made: Made) -> None:
    for option in ([], ["--full"], ["--json"]):
        assert not shown_unsafely(cli("messages", made.path, "bob", *option).out)
    shown = cli("messages", made.path, "bob", "--full").out
    assert escape_text(HOSTILE) in shown
    assert "user (eve\\x1b[2J)" in shown
    (message,) = cli("messages", made.path, "bob", "--json").json["messages"]
    assert (message["content"], message["name"]) == (HOSTILE, "eve\x1b[2J")
    for command in (["messages", made.path, "bob", "--full"], ["sessions", made.path]):
        code, screen = on_a_terminal(*command)
        assert code == 0
        assert not shown_unsafely(re.sub(r"\x1b\[[\d;]*m|\r", "", screen))
        assert "\x1b[31m and" not in screen
        assert "[bold]x[/bold]" in screen


@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), full=st.booleans())
def test_no_text_of_any_kind_reaches_the_terminal_as_a_command(text: str, full: bool) -> None:
    call = ToolCallRequest(id=NOBODY, name=text, arguments=text)
    result = ToolCallResult(tool_call_id=NOBODY, result={text: text}, is_error=True)
    message = Message(role="user", content=text, name=text, tool_calls=(call,), tool_results=(result,))
    shown = [piece.plain for piece in MessagePage([message], newest=True, full=full).pieces(message)]
    assert not shown_unsafely("".join([*shown, format_role(message)]))
    assert full or not any("\n" in line for line in shown)
    encoded = escape_json(encode_json({text: text}))
    assert not shown_unsafely(encoded)
    assert "\n" not in encoded
    assert json.loads(encoded) == {text: text}


def test_a_leak_to_the_terminal_would_be_noticed(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "escape_text", lambda text: text)
    assert shown_unsafely(cli("messages", made.path, "bob").out)


def test_json_is_harmless_and_says_the_same() -> None:
    assert escape_json('{"a":"b é 🙂"}') == '{"a":"b é 🙂"}'
    assert escape_json('"\x7f\x9b\u202e\U000e0001"') == '"\\u007f\\u009b\\u202e\\udb40\\udc01"'


def test_texts_are_shortened_unless_all_is_wanted(cli: Cli, tmp_path: Path) -> None:
    long = "word " * 200_000
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.session("s").append([long, "one\r\n\ttwo\n\nthree\x0bfour", " " * 5_000 + "late"])
    short = cli("messages", tmp_path / "a.db", "s").out
    assert len(short) < 1_500
    assert short.splitlines()[1].endswith(" word…")
    assert short.splitlines()[2].endswith("one two three four")
    full = cli("messages", tmp_path / "a.db", "s", "--full").out
    assert long.rstrip() in full
    assert "\n  one\n      two\n\n  three\\x0bfour\n" in full


def test_parts_that_are_not_text_are_named(cli: Cli, tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "image", "url": "https://example.org/\x1b.png"},
        {"type": "file", "file_id": "f-1", "name": "plan.pdf"},
        {"type": "reasoning", "provider": "openai", "item": {"type": "reasoning"}},
        {"type": "other", "provider": "openai", "item": {"type": "web_search_call"}},
        {"type": "refusal", "text": "no"},
    ]
    with holdfast.open(tmp_path / "a.db") as hf:
        session = hf.session("s")
        asked = session.append(calling("f"))
        session.append_result(asked.tool_calls[0], [{"type": "text", "text": "in parts"}])
        session.append(Message(role="assistant", content=parts))
    shown = cli("messages", tmp_path / "a.db", "s").out
    assert "look [image: https://example.org/\\x1b.png] [file: plan.pdf] [reasoning]" in shown
    assert "[other: web_search_call] [refusal] no" in shown
    assert re.search(r"← f  …\w{8}  in parts\n", shown)


def test_pages_lead_to_each_other_in_both_directions(cli: Cli, made: Made) -> None:
    newest = cli("messages", made.path, "alice", "--limit", "2")
    assert [row.split()[0] for row in newest.out.splitlines()[1:]] == [made.ids["cut"], made.ids["last"]]
    assert newest.err == f"Earlier messages: holdfast messages {made.path} alice --before {made.ids['cut']}\n"
    earlier = cli("messages", made.path, "alice", "--limit", "2", "--before", made.ids["cut"].lower(), "--json")
    assert [message["id"] for message in earlier.json["messages"]][-1] == made.ids["torn"]
    later = cli("messages", made.path, "alice", "--limit", "1", "--after", made.ids["torn"])
    assert [row.split()[0] for row in later.out.splitlines()[1:]] == [made.ids["cut"]]
    assert later.err == f"Later messages: holdfast messages {made.path} alice --after {made.ids['cut']}\n"
    end = cli("messages", made.path, "alice", "--after", made.ids["last"])
    assert (end.code, end.out) == (0, "")
    assert "no more messages" in end.err


def test_messages_as_json_are_whole(cli: Cli, made: Made) -> None:
    found = cli("messages", made.path, "alice", "--json").json
    assert (found["session"], found["thread"], len(found["messages"])) == ("alice", "main", 6)
    asked = found["messages"][1]
    assert [call["id"] for call in asked["tool_calls"]] == [made.ids[name] for name in ("search", "book", "wait")]
    assert asked["tool_calls"][0]["arguments"] == '{"q": 1}'
    torn = found["messages"][3]["tool_results"][0]
    assert (torn["tool_call_id"], torn["is_error"], torn["interrupted"]) == (made.ids["book"], True, True)
    assert found["messages"][5]["usage"]["cost"] == 12_300_000
    assert cli("messages", made.path, "zoes", "--json").json["messages"][0]["erased"]


def test_a_session_in_which_nothing_was_said_says_so(cli: Cli, made: Made) -> None:
    result = cli("messages", made.path, "done")
    assert (result.code, result.out, result.err) == (0, "", "There are no messages.\n")
    assert cli("messages", made.path, "done", "--json").json["messages"] == []


# fork


def test_a_fork_goes_on_where_it_was_told_to_and_says_how(cli: Cli, made: Made) -> None:
    result = cli("fork", made.path, "alice", "--at", made.ids["asked"], "--as", "other way")
    assert result.code == 0
    assert "'other way'" in result.out
    assert f"holdfast messages {made.path} alice --thread 'other way'" in result.out
    shown = cli("messages", made.path, "alice", "--thread", "other way", "--json").json["messages"]
    assert [message["id"] for message in shown] == [made.ids["first"], made.ids["asked"]]
    assert len(cli("messages", made.path, "alice", "--json").json["messages"]) == 6
    again = cli("fork", made.path, "alice", "--thread", "other way", "--json").json
    assert again | {"session": "alice", "from": "other way", "at": made.ids["asked"], "messages": 2} == again
    with holdfast.open(made.path) as hf:
        assert set(hf.session("alice", create=False).details.threads) == {"main", "other way", again["thread"]}
    assert cli("verify", made.path).code == 0


def test_looking_writes_nothing(cli: Cli, made: Made) -> None:
    before = position(made.path)
    for command in (["sessions"], ["messages", "alice"], ["messages", "bob", "--json"], ["messages", "nobody"]):
        cli(command[0], made.path, *command[1:])
    assert position(made.path) == before


def test_the_environment_names_the_journal(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(made.path))
    result = cli("sessions", "--tenant", "acme")
    assert result.err == "Read one with: holdfast messages theirs --tenant acme\n"
    assert "Of another tenant" in cli("messages", "theirs", "--tenant", "acme").out
    assert cli("fork", "alice", "--json").json["messages"] == 6


# bad input


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["sessions", "PATH", "--status", "asleep"], "closing"),
        (["sessions", "PATH", "--order", "size"], "activity"),
        (["sessions", "PATH", "--limit", "0"], "--limit"),
        (["sessions", "PATH", "--user", ""], "user"),
        (["sessions", "PATH", "--tenant", ""], "tenant"),
        (["sessions", "PATH", "extra"], "extra"),
        (["messages", "PATH"], "HOLDFAST_URL"),
        (["messages", "PATH", "nobody"], "holdfast sessions"),
        (["messages", "PATH", ""], "empty"),
        (["messages", "PATH", "evil\x1b[31m"], "control character"),
        (["messages", "PATH", "alice", "--thread", "none"], "'main'"),
        (["messages", "PATH", "alice", "--tenant", "acme"], "no session 'alice'"),
        (["messages", "PATH", "alice", "--limit", "0"], "--limit"),
        (["messages", "PATH", "alice", "--before", NOBODY], NOBODY),
        (["messages", "PATH", "alice", "--after", "hm"], "no message"),
        (["messages", "PATH", "alice", "--after", ""], "message"),
        (["messages", "PATH", "alice", "--after", NOBODY, "--before", NOBODY], "not both"),
        (["fork", "PATH", "nobody"], "holdfast sessions"),
        (["fork", "PATH", "alice", "--at", NOBODY], NOBODY),
        (["fork", "PATH", "alice", "--as", "main"], "'main'"),
        (["fork", "PATH", "alice", "--as", ""], "empty"),
        (["fork", "PATH", "done"], "closed"),
    ],
)
def test_bad_values_are_refused_in_one_line_and_change_nothing(
    cli: Cli, made: Made, arguments: list[str], word: str
) -> None:
    before = position(made.path)
    result = cli(*(str(made.path) if argument == "PATH" else argument for argument in arguments))
    assert_one_clear_line(result, 2, word)
    assert not shown_unsafely(result.err)
    assert position(made.path) == before


@pytest.mark.parametrize("use", [["sessions"], ["messages", "alice"], ["fork", "alice"]], ids=lambda use: use[0])
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_not_a_journal_is_refused_and_left_alone(
    cli: Cli, made: Made, tmp_path: Path, use: list[str], make: Callable[[Path], None]
) -> None:
    make(made.path)
    before = contents(tmp_path)
    assert_one_clear_line(cli(use[0], made.path, *use[1:]), 2, BAD[make])
    assert contents(tmp_path) == before


def test_a_reader_that_goes_away_ends_the_listing_quietly(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.session("s").append(["word " * 1_000] * 100)
    command = [*HOLDFAST, "messages", str(tmp_path / "a.db"), "s", "--full", "--limit", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == ""
        assert listing.wait() == 141
