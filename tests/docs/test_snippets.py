"""Every snippet runs: Python blocks of a page in order, commands in the folder that they left."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main

from .pages import ROOT, Block, blocks, name, pages

WITH_SNIPPETS = [page for page in pages() if {block.language for block in blocks(page)} & {"python", "bash"}]
_PRINTED = re.compile(r"# → (.*)$", re.MULTILINE)


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name)
def test_every_snippet_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    names: dict[str, Any] = {"__name__": "snippet"}
    for block in blocks(page):
        if block.language == "python":
            run_python(page, block, names)
        elif block.language == "bash":
            run_commands(block)


def run_python(page: Path, block: Block, names: dict[str, Any]) -> None:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    wanted = _PRINTED.findall(block.text)
    assert printed.getvalue().splitlines() == wanted, f"{name(page)}:{block.line} prints something else"


def run_commands(block: Block) -> None:
    for line in filter(None, (line.split("#")[0].strip() for line in block.text.splitlines())):
        program, *arguments = shlex.split(line)
        if program == "holdfast":
            assert main(arguments) == 0, line
        else:
            assert program == "make", f"{line!r}: only holdfast and make are known here"
            targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets), line


def test_a_snippet_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    run_python(page, Block("python", "print(1 + 1)  # → 2\n", 1), {})
    with pytest.raises(AssertionError):
        run_python(page, Block("python", "print(1 + 1)  # → 3\n", 1), {})
    with pytest.raises(AssertionError):
        run_commands(Block("bash", "make coffee\n", 1))
    with pytest.raises(AssertionError):
        run_commands(Block("bash", f"holdfast verify {tmp_path}/nothing.db\n", 1))
