"""Write the plain async twins in src/holdfast/aio from the sync client, in place.

    python tools/generate_aio.py            writes them
    python tools/generate_aio.py --check    reports the files that would change, and exits 1 if any would

A plain twin only crosses into a thread, and its docstring says no more than `See Session.export.` Its signature and its
body are generated here. RUNNERS names those that cross in a special way. A twin with any other docstring is written by
hand and left alone; a public method of the sync class without a twin gets a plain one. Twins stand in the order of the
sync class where they are new, and keep their place otherwise.
"""
# ruff: noqa: INP001

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"


@dataclass(frozen=True)
class Twin:
    """A sync class, its async class, and the attribute under which the async object holds the sync one."""

    sync_file: str
    sync: str
    async_file: str
    holds: str

    @property
    def colour(self) -> str:
        """The name of the async class."""
        return f"Async{self.sync}"


TWINS = (
    Twin("client/effects.py", "Effects", "aio/effects.py", "_effects"),
    Twin("client/frame.py", "Frame", "aio/frame.py", "_frame"),
    Twin("client/holdfast.py", "Holdfast", "aio/holdfast.py", "_client"),
    Twin("client/index.py", "IndexView", "aio/index.py", "_view"),
    Twin("client/journal.py", "JournalView", "aio/journal.py", "_view"),
    Twin("client/session.py", "Session", "aio/session.py", "_session"),
    Twin("client/session_views.py", "SessionPacks", "aio/session_views.py", "_packs"),
    Twin("client/session_views.py", "SessionCompaction", "aio/session_views.py", "_compaction"),
    Twin("client/session_views.py", "SessionDetails", "aio/session_views.py", "_details"),
    Twin("client/state.py", "ReadableState", "aio/state.py", "_of"),
    Twin("client/state.py", "State", "aio/state.py", "_of"),
    Twin("client/state.py", "StateStore", "aio/state.py", "store"),
)

EMBEDS = "An async embedder is awaited here."
LOADS = "Images and files are loaded with it."
PAGES = "One crossing per page."
RULES = "Async rules are awaited here."
WAITS = "It may wait, in a thread for those that do."
OFFERS = "An async memory is awaited here."

RUNNERS = {
    "Effects.dead": ("iterate_pages", PAGES),
    "Effects.pending": ("iterate_pages", PAGES),
    "Frame.pack": ("make_loaded_pack", LOADS),
    "Holdfast.search": ("run_search", EMBEDS),
    "Holdfast.questions": ("iterate_pages", PAGES),
    "Holdfast.sessions": ("iterate_pages", PAGES),
    "Holdfast.sweep_sessions": ("run_offer", OFFERS),
    "IndexView.assemble_context_pack": ("make_loaded_pack", LOADS),
    "IndexView.begin_model_call": ("run_with_rules", RULES),
    "IndexView.pack_at": ("make_loaded_pack", LOADS),
    "IndexView.resume_actor": ("self._threads.run_waiting", WAITS),
    "IndexView.stacks": ("yield_pages", PAGES),
    "IndexView.sweep": ("self._threads.run_waiting", WAITS),
    "Holdfast.drain": ("self._threads.run_waiting", WAITS),
    "Session.append": ("self._run_with_rules", RULES),
    "Session.append_result": ("self._run_with_rules", RULES),
    "Session.close": ("run_offer", OFFERS),
    "Session.pack": ("make_loaded_pack", LOADS),
    "Session.pack_at": ("make_loaded_pack", LOADS),
    "Session.reset": ("run_offer", OFFERS),
    "Session.search": ("run_search", EMBEDS),
    "Session.why": ("run_search", EMBEDS),
    "SessionPacks.begin_model_call": ("run_with_rules", RULES),
    "State.search": ("run_search", EMBEDS),
}
"""Twins that cross by another function than `threads.run`, with what their docstring says of it.

`yield_pages` makes an async generator of `iterate_pages`.
"""

SHOWN_AS = {"ReadableState": "State"}
"""Classes that docstrings name by the class that users hold."""


@dataclass(frozen=True)
class Member:
    """A public method or property of the sync class, with its overloads."""

    name: str
    nodes: tuple[ast.FunctionDef, ...]

    @property
    def is_property(self) -> bool:
        """True for a property."""
        return any(ast.unparse(mark) == "property" for mark in self.nodes[-1].decorator_list)


def read_members(tree: ast.Module, name: str) -> list[Member]:
    """Return the public members of a class, in order."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in find_class(tree, name).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found.setdefault(node.name, []).append(node)
    return [Member(name, tuple(nodes)) for name, nodes in found.items()]


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return a class of a module."""
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def render_twin(twin: Twin, member: Member) -> str:
    """Return the source of a twin, unformatted."""
    shown = f"{SHOWN_AS.get(twin.sync, twin.sync)}.{member.name}"
    runner, note = RUNNERS.get(shown, ("", ""))
    doc = f'"""See {shown}.{" " + note if note else ""}"""'
    *overloads, last = member.nodes
    parts = [
        f"@overload\nasync def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}: ..."
        for node in overloads
        if node.returns is not None
    ]
    returns = ast.unparse(last.returns) if last.returns is not None else "None"
    head = f"async def {member.name}({ast.unparse(last.args)}) -> {returns}:"
    if runner in ("iterate_pages", "yield_pages"):
        head = head.replace("-> Iterator[", "-> AsyncIterator[")
    if runner == "iterate_pages":
        head = head.removeprefix("async ")
    parts.append(f"{head}\n    {doc}\n    {render_body(twin, member, runner, returns)}")
    return "\n\n".join(parts)


def render_body(twin: Twin, member: Member, runner: str, returns: str) -> str:
    """Return the statement that crosses into a thread."""
    of = f"self.{twin.holds}.{member.name}"
    args = render_arguments(member.nodes[-1].args)
    call = of if member.is_property else f"{of}({', '.join(args)})"
    give = "await" if returns == "None" else "return await"
    if runner == "iterate_pages":
        return f"return iterate_pages(self._threads, {call})"
    if runner == "yield_pages":
        return f"async for item in iterate_pages(self._threads, {call}):\n        yield item"
    if runner == "make_loaded_pack":
        return f"{give} make_loaded_pack(self._threads, {', '.join([of, *args])})"
    if runner.startswith("run_"):
        return f"{give} {runner}(self._threads, {f'lambda: {call}' if args else of})"
    runner = runner or "self._threads.run"
    if member.is_property or len(member.nodes) > 1 or runner == "self._run_with_rules":
        return f"{give} {runner}(lambda: {call})"
    return f"{give} {runner}({', '.join([of, *args])})"


def render_arguments(args: ast.arguments) -> list[str]:
    """Return the arguments that pass a method's own parameters on."""
    found = [arg.arg for arg in [*args.posonlyargs, *args.args] if arg.arg != "self"]
    found += [f"*{args.vararg.arg}"] if args.vararg else []
    found += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    return found + ([f"**{args.kwarg.arg}"] if args.kwarg else [])


def rewrite(text: str, twin: Twin, members: list[Member]) -> str:
    """Return a module with the plain twins of one class written anew."""
    lines = text.splitlines()
    node = find_class(ast.parse(text), twin.colour)
    spans: dict[str, tuple[int, int, str]] = {}
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(mark.lineno for mark in child.decorator_list)]) - 1
            begin = spans[child.name][0] if child.name in spans else first
            spans[child.name] = (begin, child.end_lineno or 0, ast.get_docstring(child) or "")
    after = spans["__init__"][1] if "__init__" in spans else node.body[0].end_lineno or 0
    edits: list[tuple[int, int, str]] = []
    for member in members:
        shown = f"{SHOWN_AS.get(twin.sync, twin.sync)}.{member.name}"
        made = "\n".join(f"    {line}" if line else "" for line in render_twin(twin, member).splitlines())
        if member.name not in spans:
            edits.append((after, after, f"\n{made}\n"))
            continue
        begin, after, doc = spans[member.name]
        if doc == f"See {shown}." or shown in RUNNERS:
            edits.append((begin, after, made))
    # From the end, so that the places of the others stay; what is inserted at one place keeps its order.
    for begin, end, _, made in sorted(((*edit[:2], at, edit[2]) for at, edit in enumerate(edits)), reverse=True):
        lines[begin:end] = made.splitlines()
    return "\n".join(lines) + "\n"


def format_source(text: str, path: Path) -> str:
    """Return source as ruff formats it."""
    command = [Path(sys.executable).parent / "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603


def generate() -> dict[Path, str]:
    """Return every file of twins as it should be."""
    found: dict[Path, str] = {}
    for twin in TWINS:
        path = SOURCE / twin.async_file
        text = found.get(path) or path.read_text(encoding="utf-8")
        tree = ast.parse((SOURCE / twin.sync_file).read_text(encoding="utf-8"))
        found[path] = rewrite(text, twin, read_members(tree, twin.sync))
    return {path: format_source(text, path) for path, text in found.items()}


def main(arguments: list[str]) -> int:
    """Write the twins, or check them."""
    late = {path: text for path, text in generate().items() if path.read_text(encoding="utf-8") != text}
    if arguments == ["--check"]:
        if late:
            names = ", ".join(sorted(path.relative_to(SOURCE).as_posix() for path in late))
            sys.stderr.write(f"Out of date: {names}. Run: python tools/generate_aio.py\n")
        return int(bool(late))
    if arguments:
        sys.stderr.write(__doc__ or "")
        return 2
    for path, text in late.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
