"""Hostile exports: changed by somebody who knows the format and computes its hashes again, they do no harm."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.core.journal.chain import genesis_hash, link_hash
from holdfast.flow.journal import transfer
from holdfast.journal.sqlite import maintenance
from holdfast.records.events.envelope import StoredEvent
from tests.scale import seeded, volume

NUMBERS = [0, 1, -1, 7, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 2**70]
WRONG = [None, "", "x", [], {}, True, False, 1.5, 7.0, 1e300, "\ud800", "\0", "A" * 44, "9" * 30, [[]], {"x": None}]
STEPS = 50
"""Progress reports after which a rebuild counts as endless."""

Line = dict[str, Any]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """The lines of a small journal with a bit of everything."""
    path = tmp_path_factory.mktemp("exported") / "good.jsonl"
    with holdfast.open("memory:") as hf:
        alice = hf.as_user("alice")
        chat = alice.session("s", system="Be brief.", idle_timeout=60)
        chat.append("one", key="k")
        chat.pin(chat.append("two"))
        with alice.frame("work", actor="a") as frame:
            frame.run(lambda: 7, key="step")
        hf.state("user/u").write("k", {"n": 1}, ttl=60)
        hf.journal.append("s", "app.noted", {"n": 1}, files=[b"x" * 40])
        hf.tenant("acme").session("t").append("three")
        hf.as_user("bob").journal.append("s", "app.noted", {"n": 1})
        hf.journal.erase("bob")
        hf.journal.export(path)
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _hash_line(line: Line, ends: dict[tuple[str, str], bytes]) -> tuple[tuple[str, str], bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "decode_facts", lambda *_: None)
        tenant, event = transfer._parse_item(dict(line), 1)
    if not isinstance(event, StoredEvent):
        raise TypeError
    place = (tenant, event.stream)
    return place, link_hash(ends.get(place) or genesis_hash(*place), event)


def chain_again(lines: list[Line]) -> None:
    """Compute every hash again, as far as the lines can be read, so that chains do not betray a change."""
    ends: dict[tuple[str, str], bytes] = {}
    for line in lines:
        try:
            (place, hashed) = _hash_line(line, ends)
        except (holdfast.HoldfastError, ValueError, TypeError):
            continue
        ends[place] = hashed
        line["hash"] = base64.b64encode(hashed).decode()


def mutate(lines: list[Line], random: Random) -> None:
    """Change a line or two: a field, a fact, the order, the number."""
    for _ in range(random.randrange(1, 3)):
        line = random.choice(lines)
        name = random.choice(list(line))
        inner = "content" if line.get("content") and random.random() < 0.3 else "facts"
        match random.randrange(9):
            case 0:
                del line[name]
            case 1:
                lines.remove(line)
            case 2:
                lines.insert(random.randrange(1, len(lines) + 1), dict(line))
            case 3:
                one, other = random.randrange(len(lines)), random.randrange(len(lines))
                lines[one], lines[other] = lines[other], lines[one]
            case 4 | 5 | 6 if str(line.get(inner)).startswith('{"'):
                fields = json.loads(line[inner])
                fields[random.choice(list(fields))] = random.choice(WRONG + NUMBERS)
                line[inner] = json.dumps(fields, separators=(",", ":"), sort_keys=True)
            case _:
                is_number = isinstance(line[name], int) and random.random() < 0.8
                line[name] = random.choice(NUMBERS if is_number else WRONG + NUMBERS)


def use(hf: holdfast.Holdfast) -> None:
    """Do with a journal what its owner would, and take any answer of holdfast's own for one."""
    calls = 0

    def count(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        assert calls < STEPS, "the rebuild does not end"

    works: list[Callable[[], object]] = [
        lambda: hf.journal.verify(),
        lambda: hf.journal.rebuild(progress=count),
        lambda: list(hf.journal.events()),
        lambda: hf.as_user("carol").journal.append("s", "app.noted"),
        lambda: hf.session("s").append("more"),
        lambda: hf.session("s").pack(),
        lambda: hf.frame("more", actor="a").__enter__(),
        lambda: hf.state("user/u").write("k", 2),
        lambda: hf.sweep_sessions(),
        lambda: hf.journal.erase("alice"),
    ]
    for work in works:
        try:
            work()
        except holdfast.HoldfastError:
            pass


def write_lines(path: Path, lines: list[Line]) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_mutated_import_is_refused_whole_or_can_be_used(exported: list[Line], tmp_path: Path) -> None:
    random = seeded("hostile imports")
    accepted = 0
    for number in range(volume(250, 5_000)):
        lines = [dict(line) for line in exported]
        mutate(lines, random)
        if random.random() < 0.9:
            chain_again(lines)
        with holdfast.open("memory:" if number % 10 else tmp_path / f"{number}.db") as hf:
            try:
                hf.journal.import_(write_lines(tmp_path / "bad.jsonl", lines))
            except holdfast.HoldfastError:
                assert hf.journal.position() == 0
                continue
            accepted += 1
            use(hf)
    print(f"{accepted} were accepted")


def renumber_event(lines: list[Line], number: Any) -> None:
    lines[-1]["seq"] = number


def renumber_subject(lines: list[Line], number: Any) -> None:
    subjects = [line for line in lines if line["kind"] == "subject"]
    events = [line for line in lines if line["kind"] == "event"]
    known = subjects[-1]["id"]
    subjects[-1]["id"] = number
    for event in events:
        event.update({name: number for name in ("user", "subject") if event[name] == known})


def renumber_epoch(lines: list[Line], number: Any) -> None:
    line = next(line for line in lines if line.get("type") == "lease.taken")
    line["facts"] = json.dumps({**json.loads(line["facts"]), "epoch": number}, separators=(",", ":"), sort_keys=True)


@pytest.mark.parametrize("url", ["memory:", "a.db"])
@pytest.mark.parametrize("renumber", [renumber_event, renumber_subject, renumber_epoch])
def test_an_import_takes_only_numbers_that_a_journal_gives(
    renumber: Callable[[list[Line], Any], None],
    url: str,
    exported: list[Line],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(url) as hf:
        for number in (*(number for number in NUMBERS if number not in (1, 2)), True, 2.0, "2", None):
            lines = [dict(line) for line in exported]
            renumber(lines, number)
            chain_again(lines)
            with pytest.raises(holdfast.Refused):
                hf.journal.import_(write_lines(tmp_path / "bad.jsonl", lines))
            assert (hf.journal.position(), hf.journal.tenants()) == (0, [])
        hf.journal.import_(write_lines(tmp_path / "good.jsonl", exported))
        assert hf.journal.rebuild() == hf.journal.position() == exported[-1]["seq"]
        assert hf.journal.append("s", "app.noted").parts[0].seq == exported[-1]["seq"] + 1
        assert hf.journal.verify().findings == ()


@pytest.mark.parametrize("renumber", [renumber_event, renumber_subject, renumber_epoch])
def test_an_import_that_takes_any_number_is_caught(
    renumber: Callable[[list[Line], Any], None],
    exported: list[Line],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "check_numbers", iter)
    with pytest.raises(pytest.fail.Exception):
        test_an_import_takes_only_numbers_that_a_journal_gives(renumber, "a.db", exported, tmp_path, monkeypatch)


def test_an_import_that_takes_facts_beyond_64_bits_is_caught(
    exported: list[Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [dict(line) for line in exported]
    line = next(line for line in lines if line.get("type") == "frame.pushed")
    facts = json.loads(line["facts"])
    line["facts"] = json.dumps({**facts, "depth": 2**70}, separators=(",", ":"), sort_keys=True)
    chain_again(lines)
    write_lines(tmp_path / "bad.jsonl", lines)
    for url in ("memory:", tmp_path / "a.db"):
        with holdfast.open(url) as hf, pytest.raises(holdfast.Refused, match="64 bits"):
            hf.journal.import_(tmp_path / "bad.jsonl")
    monkeypatch.setattr(transfer, "check_plain", lambda *_, **__: None)
    with holdfast.open(tmp_path / "b.db") as hf, pytest.raises(holdfast.errors.Corrupt):
        hf.journal.import_(tmp_path / "bad.jsonl")
