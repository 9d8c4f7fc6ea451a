"""`state` and `search`: what they show, write and refuse, in a journal and in other stores."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.cli import output, search, state
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import main
from holdfast.cli.output import escape_text
from holdfast.cli.search import highlight_matches
from holdfast.core.search.words import query_terms
from holdfast.records.messages import Message
from holdfast.testing.store_contract.hostile_keys import HOSTILE_KEYS, REFUSED_KEYS
from tests.scale import volume

from .test_cli import BAD, Result, assert_one_clear_line, contents
from .test_cli_frames import HOLDFAST
from .test_cli_sessions import HOSTILE, position, shown_unsafely

Cli = Callable[..., Result]
UNSEEN = "a\ue000b"
"""A key that is accepted and would turn a line around."""
STORES = ["fs:///{}/entries", "sqlite:///{}/entries.db", "cozo:///{}/entries.cozo"]
LOOKS = {
    "state get": ["user/42", "prefs"],
    "state ls": ["user/42"],
    "state rm": ["user/42", "prefs"],
    "state search": ["user/42", "rome"],
    "state history": ["user/42", "note"],
    "state graph": ["user/42", "anna"],
    "search": ["rome"],
}


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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if standard output were a terminal of a hundred columns."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "agent.db"
    with holdfast.open(path, durability="fast") as hf:
        kept = hf.state("user/42")
        kept.write("prefs", {"theme": "dark", "seats": [1, 2]})
        kept.write("note", "One thing")
        kept.delete("note")
        kept.write("note", HOSTILE + "\nand a second line about Rome", salience=0.5, ttl=3600, tier="hot")
        kept.write(UNSEEN, "turned around")
        for source, kind, target in (("anna", "knows", "ben"), ("ben", "knows", "cleo"), ("cleo", "likes", "anna")):
            kept.link(source, kind, target, weight=0.5)
        kept.link("ben", "lives in", "rome", target_scope="global")
        kept.link("ben", "sees", UNSEEN)
        hf.state("user/zoe").write("secret", "of Zoe")
        hf.journal.erase("zoe")
        hf.tenant("acme").state("user/42").write("prefs", "of another tenant")
        chat = hf.session("alice")
        chat.append("Book flights to Rome, please")
        chat.append(Message(role="assistant", content=f"Flying to Rome {HOSTILE}", name="eve\x1b[2J"))
        chat.append("我喜欢东京")
        hf.journal.append("bob", "app.noted")
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    shutil.copy(original, tmp_path / "agent.db")
    return tmp_path / "agent.db"


def read(path: Path, key: str, scope: str = "user/42") -> Any:
    with holdfast.open(path) as hf:
        return hf.state(scope).read(key)


# get


def test_get_shows_text_as_text_and_anything_else_as_json(cli: Cli, path: Path) -> None:
    result = cli("state", "get", path, "user/42", "note")
    assert result.out == f"{escape_text(HOSTILE)}\nand a second line about Rome\n"
    assert re.fullmatch(r"version 4, written \S+ \S+, hot, salience 0.5, expires in 59 min.*\n", result.err)
    assert cli("state", "get", path, "user/42", "prefs").out == '{"seats":[1,2],"theme":"dark"}\n'


def test_get_as_json_has_the_version_and_how_it_is_kept(cli: Cli, path: Path) -> None:
    found = cli("state", "get", path, "user/42", "note", "--json").json
    assert found["value"] == HOSTILE + "\nand a second line about Rome"
    kept = {"scope": "user/42", "key": "note", "version": 4, "tier": "hot", "salience": 0.5, "lifetime": None}
    assert found | kept == found
    assert 3_590_000 < found["expires_at"] - found["written_at"] <= 3_600_000


@pytest.mark.usefixtures("terminal")
def test_get_on_a_terminal_has_a_line_for_each_part_of_a_value(cli: Cli, path: Path) -> None:
    shown = cli("state", "get", path, "user/42", "prefs").out
    assert json.loads(shown) == {"theme": "dark", "seats": [1, 2]}
    assert shown.startswith('{\n  "seats": [')


def test_a_key_without_a_value_is_not_found(cli: Cli, path: Path) -> None:
    for command in ("get", "rm"):
        result = cli("state", command, path, "user/42", "nothing")
        assert_one_clear_line(result, 2, "'nothing' of user/42", f"holdfast state ls {path} --scope user/42")
    assert_one_clear_line(cli("state", "get", path, "user/zoe", "secret"), 2, "no value")
    assert cli("state", "get", path, "user/42", "prefs", "--tenant", "acme").out == "of another tenant\n"
    assert_one_clear_line(cli("state", "get", path, "user/42", "note", "--tenant", "acme"), 2, "no value")
    assert_one_clear_line(cli("state", "history", path, "user/42", "nothing"), 2, "never had")


# set and rm


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (['{"a": [1, null]}'], {"a": [1, None]}),
        (["-5"], -5),
        (["true"], True),
        ([""], ""),
        (["plain words"], "plain words"),
        (['"quoted"'], "quoted"),
        (["NaN"], "NaN"),
        (["[1"], "[1"),
        (["7", "--text"], "7"),
        (["--", "--text"], "--text"),
        (["--", "-"], "-"),
    ],
)
def test_set_takes_json_where_it_is_some_and_text_otherwise(cli: Cli, path: Path, given: list[str], value: Any) -> None:
    result = cli("state", "set", path, "user/42", "new", *given)
    assert (result.code, result.out) == (0, f"'new' of user/42 is at version {position_of(path, 'new')}.\n")
    assert read(path, "new") == value


def position_of(path: Path, key: str) -> int:
    with holdfast.open(path) as hf:
        entry = hf.state("user/42").entry(key)
        assert entry is not None
        return entry.version


def test_set_reads_a_file_or_standard_input_as_it_is(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "value"
    file.write_bytes(b'\xef\xbb\xbf{"from": "a file"}\n')
    assert cli("state", "set", path, "user/42", "new", "--file", file).code == 0
    assert read(path, "new") == {"from": "a file"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("several\nlines é\n".encode())))
    assert cli("state", "set", path, "user/42", "new", "-").code == 0
    assert read(path, "new") == "several\nlines é\n"


def test_set_says_how_an_entry_is_kept(cli: Cli, path: Path) -> None:
    options = ["--ttl", "60", "--tier", "cold", "--lifetime", "durable", "--content-kind", "semantic"]
    assert cli("state", "set", path, "user/42", "new", "1", *options, "--salience", "0.25", "--json").code == 0
    found = cli("state", "get", path, "user/42", "new", "--json").json
    kept = {"tier": "cold", "lifetime": "durable", "content_kind": "semantic", "salience": 0.25}
    assert found | kept == found
    assert 50_000 < found["expires_at"] - found["written_at"] <= 60_000


def test_reducers_make_the_new_value_of_the_old_one(cli: Cli, path: Path) -> None:
    for reducer, first, then, value in (
        ("append", "1", "two", [1, "two"]),
        ("merge", '{"a":{"b":1}}', '{"a":{"c":2}}', {"a": {"b": 1, "c": 2}}),
        ("sum", "1", "2", 3),
    ):
        for value_given in (first, then):
            assert cli("state", "set", path, "user/42", reducer, value_given, "--reducer", reducer).code == 0
        assert read(path, reducer) == value


def test_an_expected_version_and_a_key_make_writing_safe(cli: Cli, path: Path) -> None:
    set_prefs = ("state", "set", path, "user/42", "prefs")
    version = cli(*set_prefs, "1", "--expected-version", "1", "--json").json["version"]
    assert_one_clear_line(cli(*set_prefs, "2", "--expected-version", "1"), 2, "version 1", str(version))
    assert_one_clear_line(cli("state", "rm", *set_prefs[2:], "--expected-version", "1"), 2, "version 1")
    assert read(path, "prefs") == 1
    once = [cli(*set_prefs, "5", "--reducer", "sum", "--key", "k", "--json").json["version"] for _ in range(2)]
    assert len(set(once)) == 1
    assert read(path, "prefs") == 6
    assert_one_clear_line(cli(*set_prefs, "7", "--reducer", "sum", "--key", "k"), 2, "new key")


def test_rm_removes_a_key_once_and_its_history_stays(cli: Cli, path: Path) -> None:
    remove = ("state", "rm", path, "user/42", "prefs")
    assert cli(*remove).out == "Removed 'prefs' of user/42.\n"
    assert_one_clear_line(cli(*remove), 2, "no value")
    assert cli("state", "history", path, "user/42", "prefs").out.count("(deleted)") == 1


# ls


def test_ls_shows_entries_in_order_of_key(cli: Cli, path: Path) -> None:
    header, *rows = cli("state", "ls", path, "user/42").out.splitlines()
    assert re.split("  +", header) == list(state.ENTRY_COLUMNS)
    assert [row.split()[0] for row in rows] == [escape_text(UNSEEN), "note", "prefs"]
    assert re.search(r"hot, salience 0.5, expires in 59 min \d+ s  red \\x1b\[31m and", rows[1])
    assert rows[2].endswith('{"seats":[1,2],"theme":"dark"}')
    listed = cli("state", "ls", path, "user/42", "--json").json
    assert [entry["key"] for entry in listed["entries"]] == [UNSEEN, "note", "prefs"]
    assert cli("state", "ls", path, "--scope", "user/42", "--prefix", "n").out.splitlines()[1].startswith("note")


def test_ls_and_search_show_entries_of_one_tier(cli: Cli, path: Path) -> None:
    for key, tier in (("rome", "hot"), ("paris", "cold")):
        cli("state", "set", path, "user/7", key, "A trip to Rome", "--tier", tier)

    def keys(*arguments: Any) -> list[str]:
        found = cli("state", *arguments, "--json").json
        return [one["key"] for one in found.get("entries") or found["results"]]

    assert keys("ls", path, "user/42", "--tier", "hot") == ["note"]
    assert keys("ls", path, "user/7", "--tier", "cold") == ["paris"]
    assert keys("search", path, "user/7", "trip", "--tier", "hot") == ["rome"]
    assert cli("state", "ls", path, "--tier", "cold").out == "user/7\n"
    first = cli("state", "ls", path, "user/7", "--tier", "hot", "--limit", "1")
    assert first.err == ""
    for command in (("ls", path, "user/7"), ("search", path, "user/7", "trip")):
        assert "'tepid'" in cli("state", *command, "--tier", "tepid").err


def test_ls_without_a_scope_shows_those_that_have_entries(cli: Cli, path: Path) -> None:
    result = cli("state", "ls", path)
    assert result.out == "user/42\n"
    assert result.err == f"List one with: holdfast state ls {path} --scope user/42\n"
    for name in ("session/s1", "user/7", "global"):
        assert cli("state", "set", path, name, "k", "1").code == 0
    everything = ["global", "session/s1", "user/42", "user/7"]
    assert cli("state", "ls", path, "--json").json == {"scopes": everything}
    assert cli("state", "ls", path, "--prefix", "user/", "--after", "user/42", "--json").json == {"scopes": ["user/7"]}
    assert cli("state", "ls", path, "--limit", "2", "--json").json == {"scopes": everything[:2]}
    nothing = cli("state", "ls", path, "--tenant", "nobody")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No scope has entries.\n")


def test_pages_of_a_listing_lead_to_each_other_and_line_up(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "many.db", durability="fast") as hf:
        for number in range(130):
            hf.state("s").write(f"k{number:03}", number)
    lines = cli("state", "ls", tmp_path / "many.db", "s").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"k{number:03}" for number in range(130)]
    assert len({line.index("202") for line in lines[1:]}) == 1
    first = cli("state", "ls", tmp_path / "many.db", "s", "--limit", "100")
    options = "--scope session/s --after k099 --limit 100"
    assert first.err == f"There are more: holdfast state ls {tmp_path / 'many.db'} {options}\n"
    rest = cli("state", "ls", tmp_path / "many.db", *options.split())
    assert (len(rest.out.splitlines()), rest.err) == (31, "")
    assert len(cli("state", "ls", tmp_path / "many.db", "s", "--limit", 10**30, "--json").json["entries"]) == 130


def test_where_nothing_is_listed_it_says_so(cli: Cli, path: Path) -> None:
    assert cli("state", "ls", path, "user/nobody").err == "user/nobody has no entries.\n"
    assert cli("state", "ls", path, "user/42", "--prefix", "user_%").err == "No entry matches.\n"
    assert cli("state", "ls", path, "--prefix", "x").err == "No scope with entries matches.\n"


# history


def test_history_shows_what_was_deleted_and_erased_as_such(cli: Cli, path: Path) -> None:
    rows = [re.split("  +", row) for row in cli("state", "history", path, "user/42", "note").out.splitlines()[1:]]
    assert [row[1] for row in rows] == ["4", "3", "2"]
    assert rows[0][3].startswith("red \\x1b[31m")
    assert [row[-1] for row in rows[1:]] == ["(deleted)", "One thing"]
    assert cli("state", "history", path, "user/zoe", "secret").out.splitlines()[1].endswith("  (erased)")
    (erased,) = cli("state", "history", path, "user/zoe", "secret", "--json").json["history"]
    assert (erased["value"], erased["erased"], erased["deleted"]) == (None, True, False)
    newest = cli("state", "history", path, "user/42", "note", "--limit", "1")
    assert len(newest.out.splitlines()) == 2
    assert "--limit" in newest.err


# graph


def test_graph_tells_data_that_was_erased_from_data_that_is_null(cli: Cli, path: Path) -> None:
    with holdfast.open(path) as hf:
        hf.state("user/99").link("a", "knows", "b", data={"since": 1999})
        hf.state("global").link("a", "knows", "b")
        hf.journal.erase("99")
    for scope, erased in (("user/99", True), ("global", False)):
        (reached,) = cli("state", "graph", path, scope, "a", "--json").json["reached"]
        assert [(edge["data"], edge["erased"]) for edge in reached["path"]] == [(None, erased)]


def test_graph_shows_each_key_once_below_the_one_that_leads_to_it(cli: Cli, path: Path) -> None:
    lines = [
        "anna  user/42",
        "  - knows → ben  0.5",
        "    - lives in → rome  global",
        f"    - sees → {escape_text(UNSEEN)}",
        "    - knows → cleo  0.5",
    ]
    shown = cli("state", "graph", path, "user/42", "anna").out.splitlines()
    assert (shown[:2], sorted(shown[2:])) == (lines[:2], sorted(lines[2:]))
    back = cli("state", "graph", path, "user/42", "anna", "--direction", "in", "--depth", "1").out.splitlines()
    assert back == [lines[0], "  - ← likes cleo  0.5"]
    one_kind = cli("state", "graph", path, "user/42", "anna", "--kinds", "knows", "--kinds", "likes", "--json").json
    assert [(reached["key"], reached["depth"]) for reached in one_kind["reached"]] == [("ben", 1), ("cleo", 2)]
    assert [edge["kind"] for edge in one_kind["reached"][1]["path"]] == ["knows", "knows"]
    few = cli("state", "graph", path, "user/42", "anna", "--limit", "1")
    assert (few.out.splitlines(), "--limit" in few.err) == (lines[:2], True)
    alone = cli("state", "graph", path, "user/42", "prefs")
    assert (alone.code, alone.out) == (0, "")
    assert "No keys are linked to 'prefs'" in alone.err


# search


def test_search_finds_messages_and_entries_best_first(cli: Cli, path: Path) -> None:
    result = cli("search", path, "flight to Rome?")
    header, *rows = result.out.splitlines()
    assert re.split("  +", header) == list(search.COLUMNS)
    scores = [float(row.split()[0]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1
    assert {row.split()[1] for row in rows} >= {"session/alice/thread/main", "user/42"}
    assert re.fullmatch(r"Read the first with: holdfast messages \S+ alice\n", result.err)
    found = cli("search", path, "flight to Rome?", "--json").json
    assert found["query"] == "flight to Rome?"
    assert [one["kind"] for one in found["results"]].count("entry") == 1
    assert found["results"][0]["value"]["role"] in ("user", "assistant")


def test_search_is_limited_to_where_it_was_told_to(cli: Cli, path: Path) -> None:
    def kinds(*options: str) -> set[str]:
        return {one["kind"] for one in cli("search", path, "rome", *options, "--json").json["results"]}

    assert kinds() == {"message", "entry"}
    assert kinds("--session", "alice") == {"message"}
    assert kinds("--scope", "user/42") == {"entry"}
    assert kinds("--tenant", "acme") == kinds("--scope", "user/7") == set()
    assert len(cli("search", path, "rome", "--limit", "1", "--json").json["results"]) == 1
    inside = cli("state", "search", path, "user/42", "rome")
    assert [row.split()[2] for row in inside.out.splitlines()[1:]] == ["note"]
    assert inside.err == f"Read the first with: holdfast state get {path} user/42 note\n"


@pytest.mark.parametrize("query", ["zebra", "", '"', "\0", "a\udcff", "???", "x" * 20_000])
def test_where_nothing_is_found_it_says_so(cli: Cli, path: Path, query: str) -> None:
    for command in (["search", path], ["state", "search", path, "user/42"]):
        result = cli(*command, query)
        assert (result.code, result.out) == (0, "")
        assert "Nothing found" in result.err
        assert cli(*command, query, "--json").json["results"] == []


@pytest.mark.parametrize("query", ['rome-execution "AND C++', "rome* NEAR(x)", "-rome", "rome') OR 'a'='a' --"])
def test_a_query_is_words_and_never_a_language(cli: Cli, path: Path, query: str) -> None:
    assert cli("state", "search", path, "user/42", "--json", "--", query).json["results"][0]["key"] == "note"


@pytest.mark.usefixtures("terminal")
def test_matches_are_marked_on_a_terminal(cli: Cli, path: Path) -> None:
    yellow = "\x1b[1;33m"
    shown = cli("search", path, "rome flight").out
    assert f"Book {yellow}flights\x1b[0m to {yellow}Rome\x1b[0m, please" in shown
    assert f"我喜欢{yellow}东\x1b[0m{yellow}京\x1b[0m" in cli("search", path, "东京").out
    assert "\x1b[31m and" not in shown


@given(text=st.text(st.characters(codec="utf-8"), max_size=200), query=st.text(max_size=40))
def test_marking_changes_no_text_and_is_safe(text: str, query: str) -> None:
    line = highlight_matches(text, query_terms(query))
    assert line.plain == escape_text(" ".join(text.split()))
    assert not shown_unsafely(line.plain)


@pytest.mark.parametrize(
    ("text", "query", "wanted"),
    [
        ("Cafés and CARS, a card", "cafe car", ["Cafés", "CARS", "card"]),
        ("in 2024 and 20245", "2024", ["2024"]),
        ("the cat sat", "the cat", ["cat"]),
        ("nothing here", "zebra", []),
    ],
)
def test_words_are_marked_that_are_like_those_looked_for(text: str, query: str, wanted: list[str]) -> None:
    line = highlight_matches(text, query_terms(query))
    assert [line.plain[span.start : span.end] for span in line.spans] == wanted


# what is kept from the terminal


@pytest.mark.parametrize("command", LOOKS)
@pytest.mark.parametrize("on", ["pipe", "terminal"])
def test_nothing_stored_reaches_the_terminal_as_a_command(
    cli: Cli, path: Path, command: str, on: str, request: pytest.FixtureRequest
) -> None:
    if on == "terminal":
        request.getfixturevalue("terminal")
    words = ["user/42", "note"] if command == "state get" else LOOKS[command]
    result = cli(*command.split(), path, *words)
    assert result.code == 0
    screen = re.sub(r"\x1b\[[\d;]*m", "", result.out + result.err)
    assert not shown_unsafely(screen)
    assert "\x1b[31m and" not in result.out
    assert not shown_unsafely(cli(*command.split(), path, *words, "--json").out)


@pytest.mark.parametrize("command", ["state ls", "search", "state graph"])
def test_a_leak_to_the_terminal_would_be_noticed(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(output, "escape_text", lambda text: text)
    assert shown_unsafely(cli(*command.split(), path, *LOOKS[command]).out)
    monkeypatch.setattr(output, "escape_lines", lambda text: text)
    assert shown_unsafely(cli("state", "get", path, "user/42", "note").out)
    monkeypatch.setattr(output, "escape_json", lambda text: text)
    assert shown_unsafely(cli("state", "get", path, "user/42", "note", "--json").out)


# other stores


@pytest.mark.parametrize("url", STORES, ids=lambda url: url.split(":")[0])
def test_another_store_is_worked_on_like_a_journal(cli: Cli, tmp_path: Path, url: str) -> None:
    store = ("--store", url.format(tmp_path))
    assert cli("state", "set", "user/42", "trip", "Flights to Rome", *store).code == 0
    version = cli("state", "set", "user/42", "n", "[1]", *store, "--json").json["version"]
    got = cli("state", "get", "user/42", "n", *store, "--json").json
    assert (got["value"], got["version"]) == ([1], version)
    assert [row.split()[0] for row in cli("state", "ls", "user/42", *store).out.splitlines()[1:]] == ["n", "trip"]
    found = cli("state", "search", "user/42", "rome", *store)
    assert [row.split()[2] for row in found.out.splitlines()[1:]] == ["trip"]
    assert found.err == f"Read the first with: holdfast state get user/42 trip --store {store[1]}\n"
    with holdfast.open_store(store[1]) as opened:
        graph = "graph" in opened.capabilities
        if graph:
            opened("user/42").link("n", "of", "trip")
    drawn = cli("state", "graph", "user/42", "n", *store)
    assert drawn.out == "n  user/42\n  - of → trip\n" if graph else drawn.code == 2
    assert cli("state", "rm", "user/42", "n", *store).code == 0
    missing = cli("state", "get", "user/42", "n", *store)
    assert_one_clear_line(missing, 2, f"holdfast state ls --scope user/42 --store {store[1]}")


@pytest.mark.parametrize("url", STORES, ids=lambda url: url.split(":")[0])
def test_neither_looking_nor_a_refused_write_makes_a_store(cli: Cli, tmp_path: Path, url: str) -> None:
    store = ("--store", url.format(tmp_path))
    for command in LOOKS.keys() - {"search", "state history"}:
        assert_one_clear_line(cli(*command.split(), *LOOKS[command], *store), 2, "no store at")
    for words in (["user/42", "k", "a\0b"], ["user/42", "a\nb", "1"], ["nobody/42", "k", "1"], ["s", "k", "9" * 30]):
        assert_one_clear_line(cli("state", "set", *words, *store), 2)
    assert_one_clear_line(cli("state", "set", "s", "k", "1", "--ttl", "-1", *store), 2, "ttl")
    assert_one_clear_line(cli("state", "set", "s", "k", "1", "--key", "once", *store), 2, "idempotency")
    assert contents(tmp_path) == {}


def test_a_store_that_is_away_is_unavailable_and_no_password_is_told(cli: Cli) -> None:
    for command in (["get", "s", "k"], ["set", "s", "k", "1"]):
        result = cli("state", *command, "--store", "redis://:hushhush@localhost:1/0")
        assert_one_clear_line(result, 3, "localhost:1")
        assert "hushhush" not in result.err


# which journal


def test_the_environment_names_the_journal(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(path))
    for command, words in LOOKS.items():
        if command == "state ls":
            assert_one_clear_line(cli(*command.split(), *words), 2, "write --scope user/42")
            words = ["--scope", *words]
        if command != "state rm":
            assert cli(*command.split(), *words).code == 0
    assert cli("state", "set", "user/42", "new", "-3").code == 0
    assert cli("state", "set", path, "user/42", "newer", "-3").code == 0
    assert read(path, "new") == read(path, "newer") == -3
    assert "--scope user/42" in cli("state", "ls").err
    assert_one_clear_line(cli("state", "get", "user/42"), 2, "SCOPE and KEY")


def test_looking_writes_nothing(cli: Cli, path: Path) -> None:
    before = position(path)
    for command, words in LOOKS.items():
        if command != "state rm":
            cli(*command.split(), path, *words)
    cli("state", "ls", path)
    assert position(path) == before


# bad input


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["get", "PATH", "user/42"], "HOLDFAST_URL"),
        (["get", "PATH", "user/../42", "k"], "not a scope"),
        (["get", "PATH", "planet/42", "k"], "not a kind"),
        (["get", "PATH", "user/a b", "k"], "canonical"),
        (["get", "PATH", "", "k"], "empty"),
        (["get", "PATH", "/", "k"], "scope"),
        (["get", "PATH", "evil\x1b[31m", "k"], "control character"),
        (["get", "PATH", "user/42", "k", "extra"], "extra"),
        (["get", "PATH", "user/42", "k", "--store", "fs:///x"], "no journal"),
        (["get", "user/42", "k", "--store", "fs:///x", "--tenant", "acme"], "tenants"),
        (["get", "user/42", "k", "--store", "memory:"], "memory"),
        (["get", "user/42", "k", "--store", "cozo:"], "memory"),
        (["get", "user/42", "k", "--store", "ftp://x/y"], "ftp"),
        (["get", "user/42", "k", "--store", "fs://host/x"], "names no place"),
        (["get", "user/42", "k", "--store", ""], "store"),
        (["get", "user/42", "k", "--store", "sqlite:///PATH"], "is a journal"),
        (["set", "PATH", "user/42", "k"], "VALUE"),
        (["set", "PATH", "user/42", "k", "v", "-"], "once"),
        (["set", "PATH", "user/42", "k", "v", "--file", "x"], "once"),
        (["set", "PATH", "user/42", "k", "-", "--file", "x"], "once"),
        (["set", "PATH", "user/42", "k", "--file", "/no/such/file"], "/no/such/file"),
        (["set", "PATH", "user/42", "k", "--file", "/tmp"], "folder"),
        (["set", "PATH", "user/42", "k", "--bogus"], "--bogus"),
        (["set", "PATH", "user/42", "k", "v\0"], "NUL"),
        (["set", "PATH", "user/42", "k", '{"v": "\\u0000"}'], "NUL"),
        (["set", "PATH", "user/42", "k", "v\udcff"], "surrogate"),
        (["set", "PATH", "user/42", "k", "[" * 5_000 + "]" * 5_000], "nested"),
        (["set", "PATH", "user/42", "k", "[" * 99 + "]" * 99], "nested"),
        (["set", "PATH", "user/42", "k", "9" * 30], "64 bits"),
        (["set", "PATH", "user/42", "k", "1", "--ttl", "-1"], "ttl"),
        (["set", "PATH", "user/42", "k", "1", "--ttl", "inf"], "ttl"),
        (["set", "PATH", "user/42", "k", "1", "--salience", "1.5"], "salience"),
        (["set", "PATH", "user/42", "k", "1", "--salience", "nan"], "salience"),
        (["set", "PATH", "user/42", "k", "1", "--tier", "tepid"], "hot"),
        (["set", "PATH", "user/42", "k", "1", "--lifetime", "transient"], "durable"),
        (["set", "PATH", "user/42", "k", "1", "--lifetime", "session"], "session"),
        (["set", "PATH", "user/42", "k", "1", "--content-kind", ""], "content_kind"),
        (["set", "PATH", "user/42", "k", "1", "--expected-version", "-1"], "expected_version"),
        (["set", "PATH", "user/42", "k", "1", "--key", ""], "key"),
        (["set", "PATH", "user/42", "k", "1", "--reducer", "divide"], "merge"),
        (["set", "PATH", "user/42", "prefs", "1", "--reducer", "sum"], "number"),
        (["set", "PATH", "user/42", "prefs", "1", "--reducer", "append"], "list"),
        (["ls", "PATH", "user/42", "--limit", "0"], "--limit"),
        (["ls", "PATH", "--limit", "x"], "--limit"),
        (["ls", "PATH", "user/42", "--after", ""], "key"),
        (["ls", "PATH", "user/42", "--prefix", "\x1b"], "control character"),
        (["ls", "--store", "fs:///x"], "SCOPE"),
        (["search", "PATH", "user/42"], "QUERY"),
        (["search", "PATH", "user/42", "x", "--limit", "1001"], "1,000"),
        (["history", "PATH", "user/42", "k", "--limit", "0"], "--limit"),
        (["history", "PATH", "user/42", "k", "--store", "fs:///x"], "--store"),
        (["graph", "PATH", "user/42", "anna", "--depth", "0"], "depth"),
        (["graph", "PATH", "user/42", "anna", "--depth", "99999"], "depth"),
        (["graph", "PATH", "user/42", "anna", "--direction", "up"], "out"),
        (["graph", "PATH", "user/42", "anna", "--kinds", ""], "kind"),
        (["bogus"], "bogus"),
    ],
)
def test_bad_values_are_refused_in_one_line_and_change_nothing(
    cli: Cli, path: Path, arguments: list[str], word: str
) -> None:
    before = position(path)
    result = cli("state", *(argument.replace("PATH", str(path)) for argument in arguments))
    assert_one_clear_line(result, 2, word)
    assert not shown_unsafely(result.err)
    assert position(path) == before


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "HOLDFAST_URL"),
        (["x", "--session", "alice", "--scope", "user/42"], "one of them"),
        (["x", "--thread", "main"], "--session"),
        (["x", "--session", "nobody"], "holdfast sessions"),
        (["x", "--session", "alice", "--thread", "none"], "'main'"),
        (["x", "--scope", "planet/42"], "not a kind"),
        (["x", "--limit", "0"], "--limit"),
        (["x", "--limit", "99999999999999999999"], "limit"),
        (["x", "y"], "y"),
    ],
)
def test_a_bad_search_is_refused_in_one_line(cli: Cli, path: Path, options: list[str], word: str) -> None:
    assert_one_clear_line(cli("search", path, *options), 2, word)


def test_bytes_that_are_no_text_are_no_value(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = position(path)
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\x00")
    assert_one_clear_line(cli("state", "set", path, "s", "k", "--file", tmp_path / "binary"), 2, "UTF-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert_one_clear_line(cli("state", "set", path, "s", "k", "-"), 2, "UTF-8")
    monkeypatch.setattr("sys.stdin", None)
    assert_one_clear_line(cli("state", "set", path, "s", "k", "-"), 2, "standard input")
    assert position(path) == before


def test_hostile_keys_are_kept_as_they_are_or_refused(cli: Cli, path: Path, tmp_path: Path) -> None:
    chosen = random.Random(os.environ.get("HOLDFAST_SEED", "keys")).sample(HOSTILE_KEYS, volume(8, len(HOSTILE_KEYS)))
    for place in ([path], ["--store", f"fs:///{tmp_path}/entries"]):
        for key in chosen:
            where = place if len(place) == 1 else []
            options = place if len(place) == 2 else []
            result = cli("state", "set", *where, *options, "s", "--", key, f"value of {key!r}")
            if key in REFUSED_KEYS:
                assert_one_clear_line(result, 2, "key")
            else:
                got = cli("state", "get", *where, *options, "--json", "s", "--", key).json
                assert (got["key"], got["value"]) == (key, f"value of {key!r}")
    assert contents(tmp_path).keys() <= {"agent.db", "agent.db-wal", "agent.db-shm", "entries"}


@pytest.mark.parametrize("command", ["state get", "state ls", "search"])
def test_what_is_not_a_journal_is_refused_and_left_alone(cli: Cli, path: Path, tmp_path: Path, command: str) -> None:
    copy = path.read_bytes()
    for make, word in BAD.items():
        make(path)
        before = contents(tmp_path)
        assert_one_clear_line(cli(*command.split(), path, *LOOKS[command]), 2, word)
        assert contents(tmp_path) == before
        if path.is_dir():
            path.rmdir()
        path.write_bytes(copy)


def test_every_command_of_state_was_tried() -> None:
    assert {name for name in COMMANDS if name.startswith("state ")} == {"state set", *LOOKS} - {"search"}


def test_a_reader_that_goes_away_ends_the_listing_quietly(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        for number in range(250):
            hf.state("s").write(f"{number:03}" + "x" * 500, "word " * 100)
    command = [*HOLDFAST, "state", "ls", str(tmp_path / "a.db"), "s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == ""
        assert listing.wait() == 141
