"""`effects`: what waits and why, what people decide about it, and giving it to sinks."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.cli import effects, output
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import main
from holdfast.cli.output import escape_text
from holdfast.effects import Custom, PushFrame, WriteState, verify_webhook
from holdfast.system import SystemClock
from tests.effects.receiver import Receiver
from tests.effects.sinks import declare

from .test_cli import BAD, Result, assert_one_clear_line, contents
from .test_cli_sessions import HOSTILE, NOBODY, position, shown_unsafely

Cli = Callable[..., Result]
SECRET = "correct horse battery staple"


class Made(NamedTuple):
    """What the journal of these tests holds: ids of effects by what became of them."""

    path: Path
    ids: dict[str, str]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOOK_SECRET", SECRET)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


def out_of_order(effect: holdfast.effects.DeclaredEffect) -> None:
    raise holdfast.errors.RetryLater(HOSTILE, retry_after=1_000)


def never(effect: holdfast.effects.DeclaredEffect) -> None:
    raise holdfast.errors.EffectRefused("it is nonsense")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path, ids = tmp_path_factory.mktemp("original") / "agent.db", {}
    with holdfast.open(path, durability="fast") as hf:
        hf.effects.add_sink("mail", out_of_order)
        hf.effects.add_sink("crm", never)
        ids["failed"], ids["behind"] = declare(hf, *(Custom("send", {"to": HOSTILE, "n": n}, "mail") for n in (1, 2)))
        (ids["dead"],) = declare(hf, Custom("note", {"n": 3}, "crm"))
        (ids["deferred"],) = declare(hf, Custom("page", "wake up", "pager"))
        (ids["approval"],) = declare(hf, WriteState("user/42", "limit", 9, needs_approval=True))
        hf.effects.dispatch()
        (ids["erased"],) = declare(hf.as_user("zoe"), Custom("send", "Zoe's secret", "bell"))
        hf.journal.erase("zoe")
        (ids["pending"],) = declare(hf, PushFrame("main", "Look into it"), scope="operator/other")
        (ids["theirs"],) = declare(hf.tenant("acme"), Custom("send", "of another tenant", "mail"))
    return Made(path, ids)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copy(original.path, tmp_path / "agent.db")
    return original._replace(path=tmp_path / "agent.db")


# looking


def test_effects_are_listed_lane_by_lane_with_why_they_wait(cli: Cli, made: Made) -> None:
    result = cli("effects", made.path)
    header, *rows = (re.split("  +", line) for line in result.out.splitlines())
    assert tuple(header) == effects.COLUMNS
    lanes = [(row[2], row[0]) for row in rows]
    order = ("erased", "dead", "pending", "failed", "behind", "deferred", "approval")
    sinks = ("bell", "crm", "frames", "mail", "mail", "pager", "state")
    assert lanes == list(zip(sinks, (made.ids[name] for name in order), strict=True))
    by_id = {row[0]: row[1:] for row in rows}
    assert by_id[made.ids["dead"]][3:] == ["dead", "1", "never, unless retried", "EffectRefused: it is nonsense"]
    failed = by_id[made.ids["failed"]]
    assert failed[3:5] == ["failed", "1"]
    assert re.fullmatch(r"in 16 min \d+ s", failed[5])
    assert failed[6] == escape_text(f"RetryLater: {HOSTILE}")
    assert by_id[made.ids["behind"]][3:] == ["pending", "0", "after the effect before it"]
    assert by_id[made.ids["deferred"]][3:6] == ["deferred", "0", "when its sink is available"]
    assert by_id[made.ids["approval"]][3:] == ["approval", "0", "when approved"]
    assert by_id[made.ids["pending"]][2:] == ["operator/other", "pending", "0", "now"]
    assert result.err == f"Retry one with: holdfast effects retry {made.path} {made.ids['dead']}\n"
    assert cli("effects", "ls", made.path).out == result.out


def test_effects_as_json_are_whole_and_of_one_tenant(cli: Cli, made: Made) -> None:
    listed = {one["id"]: one for one in cli("effects", made.path, "--json").json["effects"]}
    assert listed.keys() == {*made.ids.values()} - {made.ids["theirs"]}
    assert listed[made.ids["failed"]]["payload"] == {"to": HOSTILE, "n": 1}
    assert (listed[made.ids["erased"]]["payload"], listed[made.ids["erased"]]["erased"]) == (None, True)
    (theirs,) = cli("effects", made.path, "--tenant", "acme", "--json").json["effects"]
    assert theirs["id"] == made.ids["theirs"]
    assert [one["sink"] for one in cli("effects", made.path, "--sink", "crm", "--json").json["effects"]] == ["crm"]
    assert cli("effects", made.path, "--sink", "nobody").err == "No effects are waiting for the sink 'nobody'.\n"
    assert cli("effects", made.path, "--tenant", "nobody").err == "No effects are waiting.\n"


def test_show_tells_all_that_is_known_of_an_effect(cli: Cli, made: Made) -> None:
    shown = cli("effects", "show", made.path, made.ids["failed"].lower()).out
    for words in ("declared in  operator/test", "by           test", "status       failed", '"n":1'):
        assert words in shown
    assert "(erased)" in cli("effects", "show", made.path, made.ids["erased"]).out
    assert "Zoe" not in cli("effects", "show", made.path, made.ids["erased"], "--json").out
    assert cli("effects", "show", made.path, made.ids["dead"], "--json").json["status"] == "dead"


@pytest.mark.parametrize("on", ["pipe", "terminal"])
def test_nothing_in_an_effect_reaches_the_terminal_as_a_command(
    cli: Cli, made: Made, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on == "terminal":
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
            monkeypatch.setenv(name, value)
    for command in (["ls"], ["show", made.ids["failed"]]):
        shown = cli("effects", command[0], made.path, *command[1:]).out
        assert not shown_unsafely(re.sub(r"\x1b\[[\d;]*m", "", shown))
        assert "\x1b[31m and" not in shown
    assert on == "pipe" or "\x1b[1;31mdead\x1b[0m" in cli("effects", made.path).out


def test_a_leak_to_the_terminal_would_be_noticed(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "format_text", lambda text, nothing: text or nothing)
    assert shown_unsafely(cli("effects", made.path).out)


# deciding


@pytest.mark.parametrize("name", ["dead", "failed", "deferred"])
def test_retry_lets_an_effect_be_tried_at_once(cli: Cli, made: Made, name: str) -> None:
    result = cli("effects", "retry", made.path, made.ids[name])
    assert result.out == f"Effect {made.ids[name]}: retried. The next dispatch delivers it.\n"
    assert cli("effects", "show", made.path, made.ids[name], "--json").json["status"] == "pending"
    assert cli("verify", made.path).code == 0


def test_discard_and_reject_take_an_effect_out_for_good(cli: Cli, made: Made) -> None:
    assert "will not be sent" in cli("effects", "discard", made.path, made.ids["dead"], "--reason", "too late").out
    rejected = cli("effects", "reject", made.path, made.ids["approval"], "--json").json
    assert rejected == {"effect": made.ids["approval"], "done": "rejected"}
    shown = cli("effects", "show", made.path, made.ids["dead"]).out
    assert "skipped" in shown
    assert "too late" in shown
    assert "next try" not in shown
    for name in ("dead", "approval"):
        assert_one_clear_line(cli("effects", "discard", made.path, made.ids[name]), 2, made.ids[name])
    with holdfast.open(made.path) as hf:
        assert hf.state("user/42").read("limit") is None


def test_an_approved_effect_happens_at_the_next_run(cli: Cli, made: Made) -> None:
    assert "approved" in cli("effects", "approve", made.path, made.ids["approval"]).out
    with holdfast.open(made.path) as hf:
        assert hf.state("user/42").read("limit") is None
    assert cli("effects", "run", made.path, "--once", "--sink", "state", "--json").json["applied"] == 1
    with holdfast.open(made.path) as hf:
        assert hf.state("user/42").read("limit") == 9


# run


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiving:
        yield receiving


def taken(receiver: Receiver) -> list[Any]:
    """What was posted, if it was signed with the secret."""
    return [verify_webhook(SECRET, headers, body) for _, headers, body in receiver.posted]


def test_run_gives_effects_to_webhooks_and_built_in_sinks(cli: Cli, made: Made, receiver: Receiver) -> None:
    for name in ("failed", "dead"):
        assert cli("effects", "retry", made.path, made.ids[name]).code == 0
    hooks = ["--webhook", f"mail={receiver.url}", "--webhook", f"crm={receiver.url}", "--secret-env", "HOOK_SECRET"]
    result = cli("effects", "run", made.path, "--once", *hooks)
    assert (result.code, result.out) == (0, "Effects: 4 applied.\n")
    assert result.err == "Effects for other sinks are waiting: bell, pager. Name webhooks with --webhook.\n"
    assert [one["id"] for one in taken(receiver)] == [made.ids[name] for name in ("failed", "behind", "dead")]
    assert taken(receiver)[0]["payload"] == {"to": HOSTILE, "n": 1}
    with holdfast.open(made.path) as hf:
        assert [frame.goal for frame in hf.index.stack("actor/main")] == ["Look into it"]
        statuses = {info.sink: info.status for info in hf.effects.pending()}
    assert statuses == {"bell": "pending", "pager": "deferred", "state": "approval"}
    again = cli("effects", "run", made.path, "--once", *hooks)
    assert (again.out, len(receiver.posted)) == ("No effect was due.\n", 3)
    assert SECRET.encode() not in made.path.read_bytes()
    assert cli("verify", made.path).code == 0


def test_run_tells_what_failed_and_what_is_dead(cli: Cli, made: Made, receiver: Receiver) -> None:
    for name in ("failed", "dead"):
        assert cli("effects", "retry", made.path, made.ids[name]).code == 0
    receiver.answer = lambda number: ({1: 503, 2: 410}.get(number, 204), {})
    hooks = ["--webhook", f"crm={receiver.url}", "--webhook", f"mail={receiver.url}"]
    secrets = ["--secret-env", "HOOK_SECRET", "--secret-env", "HOOK_SECRET"]
    shown = cli("effects", "run", made.path, "--once", *hooks, *secrets, "--json").json
    counts = {"applied": 1, "skipped": 0, "failed": 1, "deferred": 0, "dead": 1, "waiting": 6}
    assert shown == counts
    assert "127.0.0.1 answered 503" in cli("effects", made.path, "--sink", "crm").out


def test_many_effects_are_given_some_at_a_time(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.effects.BATCH_SIZE", 2)
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        declare(hf, *(PushFrame("main", f"goal {number}") for number in range(5)))
    assert cli("effects", "run", tmp_path / "a.db", "--once").out == "Effects: 5 applied.\n"
    with holdfast.open(tmp_path / "a.db") as hf:
        assert [frame.goal for frame in hf.index.stack("actor/main")] == [f"goal {number}" for number in range(5)]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_run_goes_on_until_it_is_interrupted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    path, rounds = tmp_path / "a.db", iter(range(3))
    with holdfast.open(path, durability="fast") as hf:
        declare(hf, PushFrame("main", "first"))

    def meanwhile(self: SystemClock, seconds: float) -> None:
        turn = next(rounds)
        if turn == 0:
            with holdfast.open(path) as other:
                declare(other, PushFrame("main", "second"), PushFrame("main", "third"))
        elif turn == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", meanwhile)
    result = cli("effects", "run", path, *options)
    assert result.code == 130
    if options:
        assert [json.loads(line)["applied"] for line in result.out.splitlines()] == [1, 2]
    else:
        assert result.out == "Effects: 1 applied.\nEffects: 2 applied.\n"
        assert "Ctrl-C" in result.err


# bad input


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["show", "PATH"], "HOLDFAST_URL"),
        (["show", "PATH", "hm"], "26 characters"),
        (["show", "PATH", "evil\x1b[31m"], "26 characters"),
        (["show", "PATH", NOBODY], NOBODY),
        (["retry", "PATH", NOBODY], NOBODY),
        (["retry", "PATH", "APPROVAL"], "approve"),
        (["retry", "PATH", "THEIRS"], "tenant"),
        (["approve", "PATH", "DEAD"], "dead"),
        (["reject", "PATH", "DEAD"], "Discard"),
        (["discard", "PATH", ""], "26 characters"),
        (["discard", "PATH", "DEAD", "--reason", "a\0b"], "NUL"),
        (["discard", "PATH", "DEAD", "extra"], "extra"),
        (["run", "PATH", "--once", "--webhook", "mail"], "--secret-env"),
        (["run", "PATH", "--once", "--webhook", "mail", "--secret-env", "HOOK_SECRET"], "name=https"),
        (["run", "PATH", "--once", "--webhook", "mail=ftp://x", "--secret-env", "HOOK_SECRET"], "http"),
        (["run", "PATH", "--once", "--webhook", "mail=http://u:pw@x", "--secret-env", "HOOK_SECRET"], "password"),
        (["run", "PATH", "--once", "--webhook", "mail=http://x", "--secret-env", "NO_SUCH"], "NO_SUCH"),
        (["run", "PATH", "--once", "--webhook", "frames=http://x", "--secret-env", "HOOK_SECRET"], "built in"),
        (["run", "PATH", "--once", "--webhook", "=http://x", "--secret-env", "HOOK_SECRET"], "sink"),
        (["run", "PATH", "--once", "--secret-env", "HOOK_SECRET"], "--webhook"),
        (["run", "PATH", "--once", "--sink", "mail"], "frames"),
        (["bogus"], "bogus"),
    ],
)
def test_bad_values_are_refused_in_one_line_and_change_nothing(
    cli: Cli, made: Made, arguments: list[str], word: str
) -> None:
    before = position(made.path)
    places = {"PATH": str(made.path), **{name.upper(): id for name, id in made.ids.items()}}
    result = cli("effects", *(places.get(argument, argument) for argument in arguments))
    assert_one_clear_line(result, 2, word)
    assert not shown_unsafely(result.err)
    assert SECRET not in result.err
    assert position(made.path) == before


def test_a_secret_need_not_be_text(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "a\udcffb")
    hook = ["--webhook", "nobody=http://127.0.0.1:1/", "--secret-env", "HOOK_SECRET"]
    assert cli("effects", "run", made.path, "--once", *hook, "--sink", "nobody").code == 0


def test_the_environment_names_the_journal(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(made.path))
    assert made.ids["dead"] in cli("effects").out
    assert "EffectRefused" in cli("effects", "show", made.ids["dead"]).out
    assert cli("effects", "retry", made.ids["dead"]).code == 0


@pytest.mark.parametrize("command", ["ls", "discard", "run"])
def test_what_is_not_a_journal_is_refused_and_left_alone(cli: Cli, made: Made, tmp_path: Path, command: str) -> None:
    copy = made.path.read_bytes()
    for make, word in BAD.items():
        make(made.path)
        before = contents(tmp_path)
        words = {"ls": [], "run": ["--once"]}.get(command, [NOBODY])
        assert_one_clear_line(cli("effects", command, made.path, *words), 2, word)
        assert contents(tmp_path) == before
        if made.path.is_dir():
            made.path.rmdir()
        made.path.write_bytes(copy)


def test_every_command_of_effects_has_a_name_of_its_own() -> None:
    named = {name.split()[1] for name in COMMANDS if name.startswith("effects ")}
    assert named == {"ls", "show", "retry", "discard", "approve", "reject", "run"}
