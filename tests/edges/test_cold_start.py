"""A new process imports and loads what it works with, and starts no thread for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.core import lazy

WORK = """
import sys, threading
import holdfast

alone = set(sys.modules)
assert threading.active_count() == 1
hf = holdfast.open(sys.argv[1])
session = hf.session("s")
session.append({"role": "user", "content": "Refund order 17, zqxjkwv! Ja, natürlich?"})
assert session.pack(8000).messages
assert threading.active_count() == 1
"""
"""A process from its start to its first pack. The text has a word that no vocabulary holds."""

NEEDLESS = {
    "asyncio", "concurrent.futures", "cyclopts", "difflib", "email", "html", "http", "httpx2", "importlib.metadata",
    "importlib.resources", "json", "logging", "mimetypes", "multiprocessing", "numpy", "opentelemetry", "pydantic",
    "random", "rich", "secrets", "shutil", "socket", "ssl", "subprocess", "tempfile", "tiktoken", "tokenizers",
    "unittest", "wordllama", "zipfile",
    "holdfast.aio", "holdfast.cli", "holdfast.client.effects", "holdfast.client.frame", "holdfast.client.index",
    "holdfast.client.journal", "holdfast.client.session_views", "holdfast.client.state", "holdfast.client.turn",
    "holdfast.extras", "holdfast.flow.packs.trace", "holdfast.flow.sessions.import_export",
    "holdfast.flow.turns.engine", "holdfast.flow.turns.tool_calls", "holdfast.journal.memory",
    "holdfast.model.embedders", "holdfast.model.http", "holdfast.model.prices", "holdfast.model.providers",
    "holdfast.model.scripted", "holdfast.model.summarizers", "holdfast.runtime", "holdfast.store", "holdfast.testing",
    "holdfast.windows",
}  # fmt: skip
MOST_MODULES = 200
"""Modules of holdfast that opening, appending and packing may import: each takes a quarter of a millisecond."""


def run(code: str, *arguments: str) -> str:
    """The output of a fresh process in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_holdfast_imports_none_of_its_clients() -> None:
    found = run("import sys, holdfast; print(*(name for name in sys.modules if name.startswith('holdfast')))")
    assert set(found.split()) == {"holdfast", "holdfast.core", "holdfast.core.lazy", "holdfast.version"}


def test_opening_appending_and_packing_import_nothing_that_they_do_not_need(tmp_path: Path) -> None:
    found = set(run(WORK + "print(*sys.modules)", str(tmp_path / "a.db")).split())
    assert {"apsw", "holdfast.client.session", "splintr"} <= found
    assert found & NEEDLESS == set()
    assert len([name for name in found if name.startswith("holdfast")]) <= MOST_MODULES


def test_opening_appending_and_packing_load_no_encoding_of_splintr(tmp_path: Path) -> None:
    refused = "import splintr; splintr.Tokenizer.from_pretrained = None\n"
    run(refused + WORK, str(tmp_path / "a.db"))
    with pytest.raises(subprocess.CalledProcessError):
        run(refused + WORK + "session.append('x' * 40_000)", str(tmp_path / "b.db"))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork")
def test_a_process_may_fork_after_its_first_pack_and_parent_and_child_go_on(tmp_path: Path) -> None:
    forked = """
import os
child = os.fork()
for number in range(3):
    session.append(f"{'child' if child == 0 else 'parent'} {number} " + "x" * 20_000 * number)
assert session.pack(100_000).messages
hf.close()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with holdfast.open(sys.argv[1]) as hf:
    print(len(hf.session("s")), hf.journal.verify().ok)
"""
    assert run(WORK + forked, str(tmp_path / "a.db")).split() == ["7", "True"]


def test_a_lazy_module_gives_its_place_to_the_module_and_then_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = ModuleType("importer")
    monkeypatch.setitem(sys.modules, "importer", importer)
    importer.parse = lazy.lazy_module("importer", "urllib.parse")  # type: ignore[attr-defined]
    stand_in = importer.parse
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = importer.parse.nothing
    import urllib.parse

    assert importer.parse is urllib.parse
    assert stand_in.quote is urllib.parse.quote


def test_a_lazy_module_does_not_take_the_place_of_what_a_test_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = ModuleType("importer")
    monkeypatch.setitem(sys.modules, "importer", importer)
    stand_in = lazy.lazy_module("importer", "html")
    importer.html = "another"  # type: ignore[attr-defined]
    assert stand_in.escape("<") == "&lt;"
    assert importer.html == "another"


def test_every_public_name_of_the_root_is_found_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*holdfast.__all__, "open"):
        monkeypatch.delitem(vars(holdfast), name, raising=False)
        found = getattr(holdfast, name, None) if name != "__version__" else "kept"
        assert found is not None, name
        assert name == "__version__" or vars(holdfast)[name] is found
    assert {*holdfast.__all__, "open"} - {"__version__"} <= set(dir(holdfast))
    with pytest.raises(AttributeError, match="has no attribute 'closed'"):
        _ = holdfast.closed
