"""Keep the house in order: rates that growth does not touch, and calls that the source must not contain.

Each test goes over the whole package and names every offender.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import holdfast
from holdfast import errors
from holdfast.journal.sqlite.statements import queries, schema_sql

from .offenders import assert_none

ROOT = Path(holdfast.__file__).parent
NOUNS = {"pairing", "embedding", "scripted", "recorded", "generated", "string", "setting", "settings", "pricing"}
NOUNS |= {"meaning", "testing", "seed", "feed", "embed", "need"}
IRREGULAR = {"said", "told", "made", "given", "taken", "kept", "left", "found", "held", "shown", "seen", "known"}
IRREGULAR |= {"begun", "written", "gone", "came", "heard", "spoken", "drawn", "torn", "sent", "lost", "meant"}
RIDDLE = re.compile(r"(What|Who|Whether|Where|Which|How|Those|Whoever|Whatever)\b")
DRAWERS = {"manager", "service", "helper", "helpers", "util", "utils", "handler", "base", "common", "misc", "processor"}
STAYING = {"recovering", "left", "pending"}
"""Public names of long standing: `agent.recovering`, `frame.left`, `effects.pending`."""
DANGEROUS = {"eval", "exec", "pickle.loads", "pickle.load", "marshal.loads", "yaml.load", "datetime.now", "uuid.uuid4"}
CLOCK = {"time.time", "time.time_ns", "datetime.datetime.now"}
FOREIGN = {"pickle", "marshal", "shelve", "sqlite3"}
DECODERS = {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}
LAZY = {"__init__.py", "connect.py"}
LAZY_CLIENTS = ("client/holdfast.py", "client/session.py")
"""The two that every process works with: what few of their methods need is imported there."""
UPWARD = {"agent", "graceful_shutdown"}
"""Methods of the asyncio client that import what stands above it."""


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """Return the text and the syntax tree of every module, by its path below the package."""
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def is_odd(word: str) -> bool:
    """Return True for a gerund or a participle that is no noun."""
    if word in NOUNS:
        return False
    return word in IRREGULAR or (word.endswith("ing") and len(word) > 5) or (word.endswith("ed") and len(word) > 4)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Yield every call with its module and the text of the function that it calls."""
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield name, node, ast.unparse(node.func)


def test_files_are_named_by_nouns_and_verbs() -> None:
    stems = {name: Path(name).stem.split("_") for name in modules() if not name.endswith("__init__.py")}
    odd = [name for name, words in stems.items() if is_odd(words[0]) or is_odd(words[-1]) or DRAWERS & set(words)]
    assert_none(odd, "name a file by the noun it holds or the verb it does:")


def test_functions_are_named_by_verbs() -> None:
    total, odd = 0, []
    for name, node in functions():
        if node.name.startswith("__") or any("property" in ast.unparse(one) for one in node.decorator_list):
            continue
        total += 1
        words = node.name.strip("_").split("_")
        participle = words[0] in IRREGULAR or words[0].endswith("ed")
        if node.name not in STAYING and is_odd(words[0]) and (len(words) == 1 or participle):
            odd.append(f"{name}: {node.name}")
    assert len(odd) <= total * 0.02, odd


def test_docstrings_name_their_subject() -> None:
    total, riddles = 0, []
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                total += bool(text)
                if RIDDLE.match(text):
                    riddles.append(f"{name}: {text[:60]}")
    assert len(riddles) <= total * 0.01, riddles


def test_every_module_states_its_promise() -> None:
    silent = [name for name, (_, tree) in modules().items() if not ast.get_docstring(tree)]
    assert_none(silent, "begin each module with a docstring that says what it promises:")


def test_functions_stay_short() -> None:
    long = [f"{name}: {node.name}" for name, node in functions() if (node.end_lineno or 0) - node.lineno + 1 >= 60]
    assert_none(long, "cut functions of 60 lines and more into those that they are made of:")


def test_a_class_name_occurs_once() -> None:
    names = Counter(node.name for _, tree in modules().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert_none((name for name, count in names.items() if count > 1), "give each class a name of its own:")


def test_few_files_are_tiny() -> None:
    files = {name: text.count("\n") for name, (text, _) in modules().items() if not name.endswith("__init__.py")}
    tiny = [name for name, lines in files.items() if lines < 60]
    assert len(tiny) <= len(files) * 0.05, tiny


def test_objects_keep_their_private_parts() -> None:
    found, lines = [], 0
    for name, (text, tree) in modules().items():
        lines += text.count("\n")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if not isinstance(node.value, ast.Name) or node.value.id not in ("self", "cls"):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert len(found) <= lines / 1_000 * 0.6, found


def test_the_root_stays_small() -> None:
    assert len(holdfast.__all__) <= 65


def test_the_clock_randomness_and_dangerous_calls_stay_where_they_belong() -> None:
    found = []
    for name, node, called in calls():
        if called in DANGEROUS or (called in CLOCK and Path(name).name != "system.py"):
            found.append(f"{name}:{node.lineno}: {called}")
    for name, (_, tree) in modules().items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        found += [
            f"{name}:{node.lineno}: import {one.name}" for node in imports for one in node.names if one.name in FOREIGN
        ]
    assert_none(
        found, "take time and ids from the ports that system.py fills, SQLite from sqlite/, and do without the rest:"
    )


def test_imports_inside_functions_are_only_where_laziness_is_the_point() -> None:
    found = []
    for name, node in functions():
        path = Path(name)
        if path.name in LAZY or "cli" in path.parts or path.as_posix().endswith(LAZY_CLIENTS):
            continue
        if path.name == "holdfast.py" and node.name in UPWARD:
            continue
        inner = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
        found += [f"{name}:{child.lineno}: {node.name}: {ast.unparse(child)}" for child in inner]
    assert_none(found, "import at the top of the module; laziness is for connect.py, __init__.py, cli and two clients:")


def test_types_are_worked_out_in_one_place() -> None:
    """Two threads that do so at once for the same type can crash the process: see core/lazy.py."""
    found = []
    for name, node, called in calls():
        path = Path(name)
        if path.name == "lazy.py" or not {"core", "flow"} & set(path.parts):
            continue
        if called in DECODERS or (called.endswith("json.decode") and node.keywords):
            found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert_none(found, "decode as a type with core.lazy.decoder:")


def test_no_statement_swallows_a_conflict() -> None:
    statements = {"the schema": schema_sql(), **queries()}
    swallow = [
        f"{name}: {words}"
        for name, text in statements.items()
        for words in ("OR IGNORE", "DO NOTHING")
        if words in text.upper()
    ]
    assert_none(swallow, "let the conflict raise, or update on it:")


def test_every_error_says_what_to_do_in_its_docstring() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    lacking = []
    for name, kind in kinds.items():
        if issubclass(kind, holdfast.HoldfastError):
            if not (kind.__doc__ or "").strip().endswith("."):
                lacking.append(f"{name}: a docstring of whole sentences")
            if f" {name}" not in (errors.__doc__ or ""):
                lacking.append(f"{name}: its place in the tree of the module's docstring")
    assert_none(lacking, "errors that lack something in errors.py:")
