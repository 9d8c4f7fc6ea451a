"""Every snippet runs: Python blocks of a page in order, commands in the folder that they left.

Pages that call a model get one: a server on loopback that speaks the real wire formats and refuses what the
real ones would. The snippets use the providers' own SDKs, unchanged.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from holdfast.cli.main import main
from holdfast.client.holdfast import Holdfast
from tests.model_server import ModelServer, Reply, model_server

from .pages import ROOT, Block, blocks, name, pages

WITH_SNIPPETS = [page for page in pages() if {block.language for block in blocks(page)} & {"python", "bash"}]
_PRINTED = re.compile(r"# → (.*)$", re.MULTILINE)
_SDK = re.compile(r"^import (?:openai|anthropic)$", re.MULTILINE)

SCRIPTS: dict[str, list[Reply]] = {
    "README.md": [
        "Noted: no nuts.",
        [{"name": "refund", "arguments": {"order": 17}}],
        "Order 17 is paid back.",
        [{"name": "refund", "arguments": {"order": 18}}],
        "Order 18 is paid back.",
    ],
    "docs/start/quickstart.md": ["Noted: no nuts."],
    "docs/build/messages.md": [[{"name": "weather", "arguments": {"city": "Rome"}}], "Sunny in Rome.", "And hot."],
    "docs/build/agent-tools.md": [
        [{"name": "search_history", "arguments": {"query": "number of the locker", "limit": None}}],
        [{"name": "expand", "arguments": {"handle": "m2", "offset": None}}],
        "It is 7719.",
    ],
    "docs/build/turns.md": [
        [{"name": "refund", "arguments": {"order": 17, "amount": 240}}],
        "Refunded.",
        "Nothing more to do.",
        [{"name": "refund", "arguments": {"order": 18, "amount": 900}}],
        "Refunded 90.",
    ],
    "docs/build/windows.md": ["Alice orders tea and is allergic to nuts."],
}
"""What the model says on a page, in order; after that, how many messages it was shown."""


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name)
def test_every_snippet_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    names: dict[str, Any] = {"__name__": "snippet"}
    with ExitStack() as stack:
        model = stack.enter_context(model_of(page, monkeypatch)) if calls_a_model(page) else None
        stack.callback(close_all, names)
        for block in blocks(page):
            if block.language == "python":
                run_python(page, block, names)
            elif block.language == "bash":
                run_commands(block)
    if model is not None:
        assert model.requests, "the page imports an SDK and calls no model"
        assert model.problems == [], "a real provider would have refused this"
        assert model.script == [], "the page does not hear all that its model was to say"


def calls_a_model(page: Path) -> bool:
    return any(block.language == "python" and _SDK.search(block.text) for block in blocks(page))


@contextlib.contextmanager
def model_of(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A model for one page, where the SDKs find it by their own environment variables."""
    with model_server(SCRIPTS.get(name(page))) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url.removesuffix("/v1"))
        for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(variable, "not-a-key")
        yield model


def close_all(names: dict[str, Any]) -> None:
    """Clients that a page leaves open, as short examples do."""
    for found in names.values():
        if isinstance(found, Holdfast | openai.OpenAI | anthropic.Anthropic):
            found.close()


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


def test_a_request_that_a_provider_would_refuse_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = "client.chat.completions.create(model='m', messages=[{'role': 'tool', 'content': 'x'}])\n"
    names: dict[str, Any] = {}
    with model_of(ROOT / "README.md", monkeypatch) as model, pytest.raises(Exception, match="answers nothing"):
        run_python(ROOT / "README.md", Block("python", f"import openai\nclient = openai.OpenAI()\n{torn}", 1), names)
    close_all(names)
    assert model.problems


def test_the_first_example_of_the_readme_shows_its_model_the_whole_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "README.md"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "snippet"}
    first = next(block for block in blocks(page) if block.language == "python")
    with model_of(page, monkeypatch) as model:
        run_python(page, first, names)
        close_all(names)
    assert model.requests == [
        {
            "model": "gpt-5-mini",
            "messages": [
                {"role": "system", "content": "You are terse."},
                {"role": "user", "content": "My daughter is allergic to nuts."},
            ],
        }
    ]
    assert "openai.OpenAI()" in first.text, "the first rung is a plain SDK and a session"
