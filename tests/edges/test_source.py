"""What the source must not contain, whatever a linter thinks of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.sqlite.statements import queries, schema_sql

ROOT = Path(holdfast.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
LAZY = {"__init__.py", "connect.py"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_the_clock_randomness_and_dangerous_calls_stay_where_they_belong(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = set(_calls(tree))
    banned = {"eval", "exec", "pickle.loads", "pickle.load", "marshal.loads", "yaml.load", "datetime.now", "uuid.uuid4"}
    if path.name != "system.py":
        banned |= {"time.time", "time.time_ns", "datetime.datetime.now"}
    assert calls & banned == set()
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names & {"pickle", "marshal", "shelve", "sqlite3"} == set()


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_inside_functions_are_only_where_laziness_is_the_point(path: Path) -> None:
    if path.name in LAZY or "cli" in path.parts:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    upward = ("agent", "graceful_shutdown") if path.name == "holdfast.py" else ()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in upward:
            inner = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
            assert inner == [], f"{node.name} imports inside"


@pytest.mark.parametrize("path", [path for path in MODULES if {"core", "flow"} & set(path.parts)], ids=_name)
def test_types_are_worked_out_in_one_place(path: Path) -> None:
    """Two threads that do so at once for the same type can crash the process: see core/lazy.py."""
    if path.name == "lazy.py":
        return
    calls = set(_calls(ast.parse(path.read_text(encoding="utf-8"))))
    assert calls & {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"} == set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("json.decode"):
            assert not node.keywords, "decode as a type with core.lazy.decoder"


def test_no_statement_swallows_a_conflict() -> None:
    for text in (schema_sql(), *queries().values()):
        assert "OR IGNORE" not in text.upper()
        assert "DO NOTHING" not in text.upper()


def test_every_error_says_what_to_do_in_its_docstring() -> None:
    from holdfast import errors

    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, holdfast.HoldfastError):
            assert (kind.__doc__ or "").strip().endswith("."), name
            assert f" {name}" in (errors.__doc__ or ""), f"{name} is not drawn in the tree"
