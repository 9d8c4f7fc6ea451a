"""Keep the house in order: rates that growth does not touch, each with every offender in its message."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import holdfast

ROOT = Path(holdfast.__file__).parent
NOUNS = {"pairing", "embedding", "scripted", "recorded", "generated", "string", "setting", "settings", "pricing"}
NOUNS |= {"meaning", "testing", "seed", "feed", "embed", "need"}
IRREGULAR = {"said", "told", "made", "given", "taken", "kept", "left", "found", "held", "shown", "seen", "known"}
IRREGULAR |= {"begun", "written", "gone", "came", "heard", "spoken", "drawn", "torn", "sent", "lost", "meant"}
RIDDLE = re.compile(r"(What|Who|Whether|Where|Which|How|Those|Whoever|Whatever)\b")
DRAWERS = {"manager", "service", "helper", "helpers", "util", "utils", "handler", "base", "common", "misc", "processor"}
STAYING = {"recovering", "left", "pending"}
"""Public names of long standing: `agent.recovering`, `frame.left`, `effects.pending`."""


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


def test_files_are_named_by_nouns_and_verbs() -> None:
    stems = {name: Path(name).stem.split("_") for name in modules() if not name.endswith("__init__.py")}
    odd = [name for name, words in stems.items() if is_odd(words[0]) or is_odd(words[-1]) or DRAWERS & set(words)]
    assert odd == []


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
    assert [name for name, (_, tree) in modules().items() if not ast.get_docstring(tree)] == []


def test_functions_stay_short() -> None:
    long = [f"{name}: {node.name}" for name, node in functions() if (node.end_lineno or 0) - node.lineno >= 60]
    assert long == []


def test_a_class_name_occurs_once() -> None:
    names = Counter(node.name for _, tree in modules().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


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
