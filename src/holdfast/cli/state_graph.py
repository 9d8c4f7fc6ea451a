"""`holdfast state graph`: what a key is connected with, as the tree of the shortest ways. It only looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

from cyclopts import Parameter
from rich.text import Text
from rich.tree import Tree

from holdfast.cli.main import OK
from holdfast.cli.opening import Json, Tenant, switch
from holdfast.cli.output import Waiting, console, emit, fields, note, printable
from holdfast.cli.places import EntryKey, ScopeText, StoreUrl, opened, placed
from holdfast.cli.sessions import check_limit
from holdfast.cli.state import SCOPE_AND_KEY, JournalPath
from holdfast.core.entries import MAX_DEPTH
from holdfast.flow.state.finding import MOST_REACHED
from holdfast.records.entries import DIRECTIONS, Direction, Edge, Reached
from holdfast.records.events.envelope import Erased

DEPTH = 3
MOST = 200
Node = tuple[str, str]


def graph(
    path: JournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    depth: Annotated[int, Parameter(help=f"So many edges away, at most {MAX_DEPTH}.")] = DEPTH,
    direction: Annotated[str, Parameter(help=f"Along edges that lead {', '.join(DIRECTIONS)}.")] = DIRECTIONS[0],
    kinds: Annotated[list[str] | None, switch("Only edges of this kind; may be repeated.")] = None,
    limit: Annotated[int, Parameter(help="Only the nearest N keys.")] = MOST,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show what a key is connected with, as a tree."""
    check_limit(limit)
    place, (where, name) = placed((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with opened(place) as stored, Waiting("graph"):
        state = stored(where)
        # One more than is shown tells whether there are more.
        asked = min(limit + 1, MOST_REACHED)
        way = cast(Direction, direction)  # Which others there could be is said where it is checked.
        found = state.traverse(name, depth=depth, kinds=kinds, direction=way, limit=asked)
    reached = found[:limit]
    if json:
        emit({"scope": state.scope, "key": name, "reached": [_as_json(one) for one in reached]})
        return OK
    if not reached:
        note(f"Nothing is connected with {name!r} of {state.scope} in this way.")
        return OK
    _show((state.scope, name), reached)
    if len(found) > limit:
        note("More keys are connected. Show them with a larger --limit.")
    return OK


def _as_json(reached: Reached) -> dict[str, Any]:
    """`erased` tells an edge's data that is gone from data that is null."""
    path = [{**fields(edge), "erased": isinstance(edge.data, Erased)} for edge in reached.path]
    return {**fields(reached), "path": path}


def _show(root: Node, reached: Sequence[Reached]) -> None:
    out = console()
    if out.is_terminal:
        out.print(_tree(root, reached))
    else:
        sys.stdout.writelines(_lines(root, reached))
        sys.stdout.flush()


def _tree(root: Node, reached: Sequence[Reached]) -> Tree:
    top = Tree(Text.assemble((printable(root[1]), "bold"), (f"  {printable(root[0])}", "dim")), guide_style="dim")
    nodes = {root: top}
    for one in reached:
        nodes[one.scope, one.key] = nodes[_before(one)].add(_line(one))
    return top


def _lines(root: Node, reached: Sequence[Reached]) -> Iterator[str]:
    """The same for a pipe: each key below the one that leads to it."""
    yield f"{printable(root[1])}  {printable(root[0])}\n"
    below: dict[Node, list[Reached]] = {}
    for one in reached:
        below.setdefault(_before(one), []).append(one)
    todo = list(reversed(below.get(root, [])))
    while todo:
        one = todo.pop()
        yield f"{'  ' * one.depth}- {_line(one).plain}\n"
        todo.extend(reversed(below.get((one.scope, one.key), [])))


def _before(one: Reached) -> Node:
    """The key from which the last edge was followed."""
    edge = one.path[-1]
    return (edge.scope, edge.source) if _forwards(one, edge) else (edge.target_scope, edge.target)


def _forwards(one: Reached, edge: Edge) -> bool:
    return (edge.target_scope, edge.target) == (one.scope, one.key)


def _line(one: Reached) -> Text:
    """The edge and the key that it leads to; the scope only where it is another one."""
    edge = one.path[-1]
    forwards = _forwards(one, edge)
    kind = f"{printable(edge.kind)} →" if forwards else f"← {printable(edge.kind)}"
    line = Text.assemble((f"{kind} ", "cyan"), (printable(one.key), "bold"))
    if _before(one)[0] != one.scope:
        line.append(f"  {printable(one.scope)}", style="dim")
    if edge.weight is not None:
        line.append(f"  {edge.weight:g}", style="dim")
    return line
