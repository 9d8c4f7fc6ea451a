"""Kill before and after every port call of what sessions do: it happens wholly or not at all, and a retry does it once.

What a process leaves behind is looked at by a new one: the journal verifies, no artifact is left that nothing
refers to, and the same call again, under the same key where it has one, ends as if nobody had died.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.errors import InvalidValue, SessionClosed
from holdfast.flow.journal import artifacts
from holdfast.flow.sessions import append, sessions
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import FaultPoints, SimulatedDeath
from tests.model.sessions_walk import count_fours
from tests.scale import SOAK

DAY = 86_400_000
SETTINGS = Settings(inline_artifact_bytes=200, inline_text_bytes=300)
LARGE = "There is much to say about this. " * 40
PICTURE = bytes(range(256)) * 4
TOOLS = [{"name": f"tool{n}", "description": "does " * 40, "input_schema": {"type": "object"}} for n in range(3)]
CALL = {"id": "p", "type": "function", "function": {"name": "tool0", "arguments": "{}"}}
OPENAI = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": LARGE},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "p", "content": "done"},
]
OPENAI_TOOLS = [{"type": "function", "function": {"name": "tool0", "description": "does " * 80}}]
WRITES = ("append", "artifact")
"""Points at which something is written. Dying between two reads leaves on every backend what was there."""


def client(journal: Any, *, later: bool = False) -> Holdfast:
    """A process; `later` is one that comes after everything that was left behind is old."""
    clock = FrozenClock(round(time.time() * 1000) + 2 * DAY) if later else FrozenClock()
    return Holdfast(assemble_env(journal, SETTINGS, clock, None, ClientExtensions(tokenizer=count_fours)))


# what is killed


def nothing(hf: Holdfast) -> None:
    pass


def made(hf: Holdfast) -> None:
    hf.session("a")


def opened(hf: Holdfast) -> None:
    hf.session("a", system="Be kind.")


def talked(hf: Holdfast) -> None:
    chat = hf.session("a", system="Be kind.")
    chat.append(["one", "two", {"role": "assistant", "content": "three", "tool_calls": [CALL]}, "four"])


def summarised(hf: Holdfast) -> None:
    talked(hf)
    chat = hf.session("a")
    chat.append_result("p", "done")
    chat.compact(keep=2, summarizer=short)
    chat.append(["five", "six"])


def ended(hf: Holdfast) -> None:
    talked(hf)
    hf.session("a").reset()


def at_work(hf: Holdfast) -> None:
    talked(hf)
    with hf.session("a").turn("five") as turn:
        turn.steps()


def branched(hf: Holdfast) -> None:
    talked(hf)
    hf.session("a").fork(thread="b").append("only here")


def short(messages: Any) -> str:
    return "in short"


def chat(hf: Holdfast) -> Session:
    return hf.session("a")


def _unless(error: type[Exception], run: Callable[[Holdfast], object]) -> Callable[[Holdfast], object]:
    """Without a key, who asks again may learn that it was done."""

    def again(hf: Holdfast) -> None:
        try:
            run(hf)
        except error:
            pass

    return again


class Op(NamedTuple):
    """An operation on what was prepared, and how a retry of it looks if that is not the same call."""

    setup: Callable[[Holdfast], object]
    run: Callable[[Holdfast], object]
    again: Callable[[Holdfast], object] | None = None
    several: bool = False
    """Whether it takes several commits, each of which the next one builds on."""


def _before_two(hf: Holdfast) -> None:
    found = chat(hf).messages()
    if len(found) > 1:
        chat(hf).rewind(to=found[0])


OPS: dict[str, Op] = {
    "create": Op(nothing, lambda hf: hf.session("a", system=LARGE, tools=TOOLS, title="t", model="gpt-4o")),
    "change": Op(opened, lambda hf: hf.session("a", system="Be terse.", tools=TOOLS, metadata={"n": 1})),
    "new thread": Op(opened, lambda hf: hf.session("a", thread="b")),
    "append": Op(opened, lambda hf: chat(hf).append("hello", key="k")),
    "append list": Op(talked, lambda hf: chat(hf).append(["five", {"role": "assistant", "content": LARGE}], key="k")),
    "append file": Op(opened, lambda hf: chat(hf).append("see", files=[("a.png", PICTURE), ("a.md", b"x")], key="k")),
    "append large": Op(talked, lambda hf: chat(hf).append([LARGE, LARGE, LARGE + "!"], key="k")),
    "append result": Op(talked, lambda hf: chat(hf).append_result("p", LARGE, key="k")),
    "append anew": Op(ended, lambda hf: chat(hf).append(["hello", "again"], key="k")),
    "append branch": Op(branched, lambda hf: hf.session("a", thread="b").append_result("p", "done", key="k")),
    "fork": Op(
        talked,
        lambda hf: chat(hf).fork(chat(hf).messages()[2], thread="b"),
        _unless(InvalidValue, lambda hf: chat(hf).fork(chat(hf).messages()[2], thread="b")),
    ),
    "rewind": Op(summarised, _before_two),
    "rewind shared": Op(branched, lambda hf: hf.session("a", thread="b").rewind(to=chat(hf).messages()[1])),
    "pin": Op(talked, lambda hf: chat(hf).pin(chat(hf).messages()[0])),
    "compact": Op(summarised, lambda hf: chat(hf).compact(keep=1, summarizer=short)),
    "compact whole": Op(summarised, lambda hf: chat(hf).compact(keep=1, whole=True, summarizer=short)),
    "compact stored": Op(summarised, lambda hf: chat(hf).compact(keep=1, strategy="sliding_window", store=True)),
    "close": Op(talked, lambda hf: chat(hf).close(), _unless(SessionClosed, lambda hf: chat(hf).close())),
    "reset": Op(branched, lambda hf: chat(hf).reset()),
    "import": Op(made, lambda hf: chat(hf).import_messages({"messages": OPENAI, "tools": OPENAI_TOOLS}, key="k")),
    "import into": Op(talked, lambda hf: chat(hf).import_messages(OPENAI, key="k")),
    "begin_model_call": Op(summarised, lambda hf: chat(hf).packs.begin_model_call(chat(hf).pack(400), key="k")),
    "set_brief": Op(
        opened, lambda hf: chat(hf).packs.set_brief("planner", system_prompt="Plan.", tools=TOOLS, key="k")
    ),
    "stop": Op(at_work, lambda hf: chat(hf).stop("enough"), several=True),
    "pack": Op(summarised, lambda hf: chat(hf).pack(400).to_openai()),
}


ON_FILES = (
    "create",
    "change",
    "append file",
    "append large",
    "append result",
    "append anew",
    "fork",
    "compact",
    "import",
)
"""What is killed on files in `make test`: with artifacts beside them, or in several streams at once."""


# what is left


def types(hf: Holdfast) -> list[str]:
    return [event.type for event in hf.journal.events()]


def shown(hf: Holdfast) -> list[Any]:
    """Everything that a person can see of every session."""
    found: list[Any] = []
    for info in sorted(hf.sessions(), key=lambda one: one.id):
        session = hf.session(info.id, thread=next(iter(hf.session(info.id, create=True).details.threads)))
        found.append(
            (
                info.id,
                info.status,
                session.details.system,
                session.title,
                session.details.metadata,
                len(session.details.tools),
            )
        )
        for thread in session.details.threads:
            line = hf.session(info.id, thread=thread)
            bodies = [(one.role, one.content, one.pinned, len(one.tool_calls)) for one in line.messages()]
            results = [result.result for one in line.messages() for result in one.tool_results]
            found.append(
                (thread, _plain(bodies), results, [one.text for one in line.compaction.summaries()], len(line))
            )
            found.append(line.pack(100_000).tokens)
    return found


def _plain(bodies: list[Any]) -> str:
    """Names of artifacts are keyed by each journal's own secret: how many there are is compared, not their names."""
    parts = [part for body in bodies if isinstance(body[1], list) for part in body[1]]
    names = [part.pop("artifact") for part in parts if "artifact" in part]
    return f"{bodies} with {len(names)} artifacts"


def collected(journal: Journal) -> None:
    """A day later nothing is on disk that nothing refers to."""
    client(journal, later=True).journal.collect()
    if isinstance(journal, SqliteJournal):
        kept = sum(path.is_file() for path in journal.files.folder.rglob("*"))
        known = sum(one.size > SETTINGS.inline_artifact_bytes for _, one in journal.artifacts())
        assert kept == known, "a file is left that nothing refers to"


class Backend:
    """Journals that all begin alike: what was prepared is made once, and copied."""

    def __init__(self, folder: Path | None, setup: Callable[[Holdfast], object]) -> None:
        self._folder, self._setup = folder, setup
        self._numbers = itertools.count(1)
        self._made: list[Journal] = []
        if folder is not None:
            first = SqliteJournal(folder / "0.db", settings=SETTINGS, durability="fast")
            setup(client(first))
            first.close()

    def make(self) -> Journal:
        self._made.append(MemoryJournal() if self._folder is None else self._copy(self._folder, next(self._numbers)))
        if self._folder is None:
            self._setup(client(self._made[-1]))
        return self._made[-1]

    def _copy(self, folder: Path, number: int) -> Journal:
        shutil.copy(folder / "0.db", folder / f"{number}.db")
        if (folder / "0.db-artifacts").exists():
            shutil.copytree(folder / "0.db-artifacts", folder / f"{number}.db-artifacts")
        return SqliteJournal(folder / f"{number}.db", settings=SETTINGS, durability="fast")

    def close(self) -> None:
        for journal in self._made:
            journal.close()


def torture(op: Op, backend: Backend) -> int:
    """Die at every point once; gives how many there are."""
    whole = backend.make()
    before = types(client(whole))
    passing = FaultPoints(whole)
    op.run(client(passing))
    after, wanted = types(client(whole)), shown(client(whole))
    for number, name in enumerate(passing.passed, 1):
        if isinstance(whole, SqliteJournal) and not SOAK and not any(kind in name for kind in WRITES):
            continue
        journal = backend.make()
        points: Any = FaultPoints(journal, die_at=number)
        with pytest.raises(SimulatedDeath):
            op.run(client(points))
        assert points.passed == passing.passed[:number], "the work is not repeatable"
        point = f"{number}: {name}"
        hf = client(journal)
        now = types(hf)
        assert now in (before, after) or (op.several and now == after[: len(now)]), point
        assert hf.journal.verify().findings == (), point
        collected(journal)
        (op.again or op.run)(client(journal))
        assert types(hf) == after, point
        assert shown(client(journal)) == wanted, point
        collected(journal)
        assert hf.journal.verify().findings == (), point
        journal.close()
    return len(passing.passed)


@pytest.mark.parametrize("name", OPS)
def test_what_a_session_does_happens_or_does_not(name: str) -> None:
    with closing(Backend(None, OPS[name].setup)) as backend:
        assert torture(OPS[name], backend) > 1


@pytest.mark.parametrize("name", OPS if SOAK else ON_FILES)
def test_what_a_session_does_happens_or_does_not_on_a_file(name: str, quick_path: Path) -> None:
    with closing(Backend(quick_path, OPS[name].setup)) as backend:
        assert torture(OPS[name], backend) > 1


def test_every_operation_that_writes_is_killed_here() -> None:
    reads = {"messages", "summaries", "expand", "export", "status", "model", "system", "title", "metadata", "tools"}
    reads |= {"add_rule", "rules", "brief", "history_tools", "pack_at", "packs", "why", "list", "compaction", "details"}
    others = {"search", "threads", "usage", "id", "thread", "import_messages", "unpin", "open_calls"}
    others |= {"turn"}  # Many commits, killed between each two where turns are.
    kinds = (Session, SessionPacks, SessionCompaction, SessionDetails)
    every = {name for kind in kinds for name in dir(kind) if not name.startswith("_")} - reads - others
    assert every <= {name.split()[0] for name in OPS} | {"append_result"}


# tests that can fail


def key_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    original = append.decide_and_append

    def change(*args: Any, key: str | None = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    patch.setattr(append, "decide_and_append", change)


def file_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What lies on disk and is never referred to is not cleared away."""
    patch.setattr(SqliteJournal, "collect", lambda self, before: 0)


def body_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The file is written once the journal refers to it."""
    original = artifacts.prepare_artifact
    held: list[Any] = []

    def prepare(env: Any, body: bytes) -> Any:
        name = artifacts.artifact_name(env.journal.secret, env.tenant, body)
        held.append((env, body))
        return replace(original(env, b"x" * 250), name=name, size=len(body))

    patch.setattr(artifacts, "prepare_artifact", prepare)


def lines_opened_apart(patch: pytest.MonkeyPatch) -> None:
    """A session is made in one commit and its line in another."""
    original = sessions.decide_and_append

    def change(env: Any, streams: Any, decide: Any, **kwargs: Any) -> Any:
        decided: dict[str, Any] = {}

        def first(states: Any) -> Any:
            decided.update(decide(states))
            return {streams[0]: decided[streams[0]]}

        original(env, streams, first, **kwargs)
        return original(env, streams, lambda states: {streams[-1]: decided.get(streams[-1], [])}, **kwargs)

    patch.setattr(sessions, "decide_and_append", change)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (key_not_looked_up, "append"),
        (file_forgotten, "append large"),
        (body_after_the_commit, "append large"),
        (lines_opened_apart, "create"),
    ],
)
def test_a_planted_bug_is_caught(plant: Any, name: str, monkeypatch: pytest.MonkeyPatch, quick_path: Path) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        wrong = pytest.raises((AssertionError, holdfast.HoldfastError))
        with closing(Backend(quick_path, OPS[name].setup)) as backend, wrong:
            torture(OPS[name], backend)
