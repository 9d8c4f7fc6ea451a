"""Write the plain async twins in src/holdfast/aio from the sync client, in place.

    python tools/generate_aio.py            writes them
    python tools/generate_aio.py --check    reports the files that would change, and exits 1 if any would

A plain twin only crosses into a thread: `export = make_async(Session.export)`. RUNNERS names those that cross in a
special way. A property and a method with overloads are spelled out, with a docstring that says no more than
`See Session.title.` Every other twin is written by hand and left alone; a public member of the sync class without a
twin gets a plain one, and a plain twin without such a member is removed. Twins stand in the order of the sync class
where they are new, and keep their place otherwise.
"""
# ruff: noqa: INP001

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"

TWINS = (
    ("effects.py", "Effects"),
    ("frame.py", "Frame"),
    ("holdfast.py", "Holdfast"),
    ("index.py", "IndexView"),
    ("journal.py", "JournalView"),
    ("session.py", "Session"),
    ("session_views.py", "SessionPacks"),
    ("session_views.py", "SessionCompaction"),
    ("session_views.py", "SessionDetails"),
    ("state.py", "ReadableState"),
    ("state.py", "State"),
    ("state.py", "StateStore"),
)
"""The sync classes, each with the file of that name in `client/` and of its twin in `aio/`."""

RUNNERS = {
    "Frame.pack": "run_pack",
    "Holdfast.drain": "ThreadPools.run_waiting",
    "Holdfast.search": "run_search",
    "Holdfast.sweep_sessions": "run_offer",
    "IndexView.assemble_context_pack": "run_pack",
    "IndexView.begin_model_call": "run_with_rules",
    "IndexView.pack_at": "run_pack",
    "IndexView.resume_actor": "ThreadPools.run_waiting",
    "IndexView.sweep": "ThreadPools.run_waiting",
    "ReadableState.search": "run_search",
    "Session.close": "run_offer",
    "Session.pack": "run_pack",
    "Session.pack_at": "run_pack",
    "Session.reset": "run_offer",
    "Session.search": "run_search",
    "Session.why": "run_search",
    "SessionPacks.begin_model_call": "run_with_rules",
}
"""Twins that cross by another function than `ThreadPools.run`."""

MAKERS = ("make_async", "make_pages")


@dataclass(frozen=True)
class Member:
    """A public method or property of a sync class, with its overloads."""

    owner: str
    name: str
    nodes: tuple[ast.FunctionDef, ...]

    def render(self) -> str:
        """Return the source of the twin, unformatted."""
        *overloads, last = self.nodes
        shown, returns = f"{self.owner}.{self.name}", ast.unparse(last.returns or ast.Constant(None))
        is_property = any(ast.unparse(mark) == "property" for mark in last.decorator_list)
        if not overloads and not is_property:
            if returns.startswith("Iterator["):
                return f"{self.name} = make_pages({shown})"
            return f"{self.name} = make_async({', '.join([shown, *filter(None, [RUNNERS.get(shown)])])})"
        parts = [
            f"@overload\nasync def {self.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}: ..."
            for node in overloads
            if node.returns is not None
        ]
        call = f"self._sync.{self.name}" + ("" if is_property else f"({', '.join(render_arguments(last.args))})")
        body = f'    """See {shown}."""\n    return await self._threads.run(lambda: {call})'
        return "\n\n".join([*parts, f"async def {self.name}({ast.unparse(last.args)}) -> {returns}:\n{body}"])


def read_members(tree: ast.Module, owner: str) -> list[Member]:
    """Return the public members of a class, in order."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in find_class(tree, owner).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found.setdefault(node.name, []).append(node)
    return [Member(owner, name, tuple(nodes)) for name, nodes in found.items()]


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return a class of a module."""
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def render_arguments(args: ast.arguments) -> list[str]:
    """Return the arguments that pass a method's own parameters on."""
    found = [arg.arg for arg in [*args.posonlyargs, *args.args] if arg.arg != "self"]
    found += [f"*{args.vararg.arg}"] if args.vararg else []
    found += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    return found + ([f"**{args.kwarg.arg}"] if args.kwarg else [])


def find_twins(node: ast.ClassDef, owner: str) -> dict[str, tuple[int, int, bool]]:
    """Return the lines of each member of an async class, and whether they are generated."""
    found: dict[str, tuple[int, int, bool]] = {}
    for child in node.body:
        end = child.end_lineno or 0
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(mark.lineno for mark in child.decorator_list)]) - 1
            begin = found[child.name][0] if child.name in found else first
            found[child.name] = (begin, end, ast.get_docstring(child) == f"See {owner}.{child.name}.")
        elif isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
            is_made = ast.unparse(child.value.func) in MAKERS
            found[ast.unparse(child.targets[0])] = (child.lineno - 1, end, is_made)
    return found


def rewrite(text: str, owner: str, members: list[Member]) -> str:
    """Return a module with the plain twins of one class written anew."""
    lines = text.splitlines()
    node = find_class(ast.parse(text), f"Async{owner}")
    twins = find_twins(node, owner)
    after = twins["__init__"][1] if "__init__" in twins else node.body[0].end_lineno or 0
    edits: list[tuple[int, int, str]] = []
    for name in twins.keys() - {member.name for member in members}:
        begin, end, is_generated = twins[name]
        edits += [(begin, end, "")] if is_generated else []
    for member in members:
        made = "\n".join(f"    {line}" if line else "" for line in member.render().splitlines())
        if member.name not in twins:
            edits.append((after, after, f"\n{made}\n"))
            continue
        begin, after, is_generated = twins[member.name]
        if is_generated:
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
    for file, owner in TWINS:
        path = SOURCE / "aio" / file
        text = found.get(path) or path.read_text(encoding="utf-8")
        tree = ast.parse((SOURCE / "client" / file).read_text(encoding="utf-8"))
        found[path] = rewrite(text, owner, read_members(tree, owner))
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
