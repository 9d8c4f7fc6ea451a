"""Damaged content and damaged artifacts are errors that name their place, never answers, whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Corrupt, Holdfast
from holdfast.core.journal import codec
from holdfast.core.sessions import message_events
from holdfast.flow.journal import artifacts
from holdfast.flow.sessions import read
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal

SECRET_WORD = "birch"
DAMAGED_WORD = "bitch"
LONG = f"{SECRET_WORD} amber " * 40_000


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open("memory:" if request.param == "memory" else tmp_path / "a.db") as client:
        yield client


def damage_contents(hf: Holdfast) -> None:
    """Change one bit of every content that holds the word; what is left is still readable JSON."""
    wanted, other = SECRET_WORD.encode(), DAMAGED_WORD.encode()
    journal = hf.env.journal
    if isinstance(journal, MemoryJournal):
        for seq, event in journal._events.items():
            if event.content is not None:
                journal._events[seq] = replace(event, content=event.content.replace(wanted, other))
    else:
        assert isinstance(journal, SqliteJournal)
        with closing(apsw.Connection(str(journal.path))) as connection:
            ((guard,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'events_only_erased'")
            connection.execute("DROP TRIGGER events_only_erased")
            change = "UPDATE events SET content = CAST(replace(CAST(content AS TEXT), ?, ?) AS BLOB)"
            connection.execute(f"{change} WHERE content IS NOT NULL", (SECRET_WORD, DAMAGED_WORD))
            connection.execute(guard)
    forget(hf)


def damage_artifacts(hf: Holdfast) -> None:
    """Change one bit of every artifact, wherever it is stored."""
    wanted, other = SECRET_WORD.encode(), DAMAGED_WORD.encode()
    journal = hf.env.journal
    if isinstance(journal, MemoryJournal):
        for place, one in journal._artifacts.items():
            assert one.body is not None
            journal._artifacts[place] = replace(one, body=one.body.replace(wanted, other))
    else:
        assert isinstance(journal, SqliteJournal)
        for file in journal.files.folder.glob("*/*"):
            file.write_bytes(file.read_bytes().replace(wanted, other))
    forget(hf)


def forget(hf: Holdfast) -> None:
    hf.env.states.clear()
    assert hf.env.recent is not None
    hf.env.recent.clear()


def tell(hf: Holdfast) -> str:
    """Write the word with everything that has content; return the id of a model call."""
    chat = hf.session("s", system=f"You are a {SECRET_WORD}.", model="gpt-5-mini")
    chat.append([f"the {SECRET_WORD} one", {"role": "assistant", "content": SECRET_WORD}])
    call = chat.packs.begin_model_call(chat.pack(4_000))
    hf.state("user/u").write("tree", {"kind": SECRET_WORD})
    hf.state("user/u").link("tree", "grows_in", "wood", data={"why": SECRET_WORD})
    frame = hf.index.push_frame(f"fell the {SECRET_WORD}", scope="actor/a")
    hf.index.suspend_frame(frame, f"Fell the {SECRET_WORD}?")
    hf.journal.append("noted", "app.noted", content={"tree": SECRET_WORD}, key="k")
    return call


READS: dict[str, Callable[[Holdfast, str], Any]] = {
    "messages": lambda hf, call: hf.session("s").messages(),
    "pack": lambda hf, call: hf.session("s").pack(4_000),
    "pack_at": lambda hf, call: hf.session("s").pack_at(call),
    "export of a session": lambda hf, call: hf.session("s").export(),
    "search in a session": lambda hf, call: list(hf.session("s").search(SECRET_WORD)),
    "read": lambda hf, call: hf.state("user/u").read("tree"),
    "entries": lambda hf, call: list(hf.state("user/u").entries()),
    "history": lambda hf, call: list(hf.state("user/u").history("tree")),
    "search in state": lambda hf, call: list(hf.state("user/u").search(SECRET_WORD)),
    "neighbours": lambda hf, call: list(hf.state("user/u").neighbours("tree")),
    "frame": lambda hf, call: hf.index.stack("actor/a"),
    "question": lambda hf, call: list(hf.questions()),
    "events": lambda hf, call: list(hf.journal.events()),
    "events by key": lambda hf, call: hf.journal.events_by_key("noted", "k"),
}


@pytest.mark.parametrize("reading", READS)
def test_damaged_content_is_an_error_that_names_its_place(hf: Holdfast, reading: str) -> None:
    call = tell(hf)
    assert READS[reading](hf, call) is not None
    damage_contents(hf)
    with pytest.raises(Corrupt, match=r"The content of \S+ version \d+ \(tenant default\) is not what was written"):
        READS[reading](hf, call)


@pytest.mark.parametrize(
    "read", [lambda hf: hf.session("s").messages(), lambda hf: hf.session("s").pack(4_000), lambda hf: body(hf)]
)
def test_a_damaged_artifact_is_an_error_that_names_it(hf: Holdfast, read: Callable[[Holdfast], Any]) -> None:
    hf.session("s", model="gpt-5-mini").append(LONG)
    assert read(hf) is not None
    damage_artifacts(hf)
    with pytest.raises(Corrupt, match=r"Artifact [0-9a-f]{64} \(tenant default\) is not what was written"):
        read(hf)


def body(hf: Holdfast) -> object:
    (name,) = [name for event in hf.journal.events() for name in event.facts.artifacts]
    return hf.journal.artifact(name)


def test_verify_reports_damaged_content_and_goes_on(hf: Holdfast) -> None:
    hf.session("s", model="gpt-5-mini").append([f"the {SECRET_WORD} one", "and another", f"a {SECRET_WORD} again"])
    damage_contents(hf)
    findings = hf.journal.verify().findings
    assert [finding.kind for finding in findings] == ["chain", "chain"]


def test_an_unchecked_read_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: content is taken as it is found."""
    tell(hf)
    hf.session("long", model="gpt-5-mini").append(LONG)
    damage_contents(hf)
    damage_artifacts(hf)
    for module in (codec, message_events, read):
        monkeypatch.setattr(module, "read_content", lambda stored: stored.content)
    shown = hf.session("s").messages()
    assert DAMAGED_WORD in str(shown[0].content)
    with pytest.raises(Corrupt, match="Artifact"):
        hf.session("long").messages()
    wanted = hf.env.journal
    monkeypatch.setattr(artifacts, "artifact_name", lambda secret, tenant, body: _claimed(wanted, body))
    assert DAMAGED_WORD in str(hf.session("long").messages()[0].content)


def _claimed(journal: Any, body: bytes) -> bytes:
    return next(one.name for _, one in journal.artifacts() if one.body == body)
