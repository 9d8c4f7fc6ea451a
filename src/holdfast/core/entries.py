"""The rules of entries and their graph: keys, options, expiry, reducers and traversal.

Entries are checked before any backend is called. A graph is walked level by level, and each key is visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.numbers import check_number, is_number, short_repr
from holdfast.errors import InvalidValue
from holdfast.records.entries import DIRECTIONS, LIFETIMES, REDUCERS, TIERS, Edge, EdgeQuery, TraversalResult
from holdfast.records.ids import RESERVED_PREFIX, check_id
from holdfast.records.scope import Scope

MAX_KEY_CHARS: Final = 512
MAX_KEY_BYTES: Final = 1_024
MAX_PAGE: Final = 10_000
MAX_DEPTH: Final = 64
MAX_TTL: Final = 100 * 366 * 24 * 3600
_SESSION_SCOPES: Final = (("session",), ("session", "thread"))
_CHOICES: Final = {"tier": TIERS, "lifetime": LIFETIMES, "reducer": REDUCERS, "direction": DIRECTIONS}
MAX_APPLIED_EFFECTS: Final = 16
"""The number of applied effects that an entry remembers."""

Node = tuple[str, str]
EdgeStep = tuple[Node, Node, Edge]
"""The node an edge was reached from, the node at its other end, and the edge, whichever way it points."""
EdgeReader = Callable[[EdgeQuery], Sequence[Edge]]
_WAYS: Final[dict[str, tuple[Literal["out", "in"], ...]]] = {"out": ("out",), "in": ("in",), "both": ("out", "in")}
MAX_QUERY_KEYS: Final = 400
"""Keys in one query; every backend can take this many."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""No value at all, unlike None, which is stored as null."""


class EntryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an entry. `ttl` is in seconds and starts again with every write."""

    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    ttl: float | None = None


def check_entry_key(value: object) -> str:
    """Check the key of an entry: printable Unicode in NFC form, so that no two keys look the same."""
    key = check_id(value, "key", limit=MAX_KEY_CHARS)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidValue(f"key has more than {MAX_KEY_BYTES:,} bytes. Use a shorter one.")
    return key


def check_not_reserved(*keys: str) -> None:
    """Refuse to write keys that are reserved for holdfast. Reading them is allowed."""
    for key in keys:
        if key.startswith(RESERVED_PREFIX):
            raise InvalidValue(
                f"{key!r:.80} begins with {RESERVED_PREFIX!r}, and such keys are written by holdfast alone. "
                "Use another key; briefs are set with set_brief."
            )


def is_session_scope(scope: Scope) -> bool:
    """Return True for the scope of a session or of one of its threads."""
    return tuple(kind for kind, _ in scope.parts) in _SESSION_SCOPES


def check_options(options: EntryOptions, scope: Scope) -> EntryOptions:
    """Check the options of an entry; refuse invalid ones by name."""
    for name in ("tier", "lifetime"):
        if getattr(options, name) is not None:
            check_choice(name, getattr(options, name))
    if options.lifetime == "session" and not is_session_scope(scope):
        raise InvalidValue(
            f"lifetime='session' ends with a session, and {scope} is neither one nor a thread of one. "
            "Use 'durable', or a ttl."
        )
    if options.content_kind is not None:
        check_id(options.content_kind, "content_kind", limit=64)
    if options.salience is not None:
        check_number("salience", options.salience, least=0, most=1, whole=False)
    if options.ttl is not None and not is_number(options.ttl, least=0.001, most=MAX_TTL, whole=False):
        raise InvalidValue(
            f"ttl must be between a millisecond and 100 years, in seconds, not {short_repr(options.ttl)}."
        )
    return options


def check_prefix(value: object) -> str:
    """Check a prefix of keys; empty for all keys."""
    return "" if isinstance(value, str) and not value else check_entry_key(value)


def check_expected(value: object) -> int | None:
    """Check an expected version: 0 for no entry, None for any."""
    if value is not None and not is_number(value, least=0, most=2**63 - 1):
        raise InvalidValue(f"expected_version must be a version, or 0 for a new key, not {short_repr(value)}.")
    return value


def check_kinds(value: object) -> tuple[str, ...]:
    """Check kinds of edges; None for every kind."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidValue("kinds must be a list of kinds of edges, or None for every kind.")
    return tuple(check_id(kind, "kind") for kind in value)


def check_choice(name: str, value: object) -> str:
    """Check an option that has a few possible values, by its name."""
    if not isinstance(value, str) or value not in _CHOICES[name]:
        raise InvalidValue(f"{name} must be one of {', '.join(_CHOICES[name])}, not {short_repr(value)}.")
    return value


def expiry(options: EntryOptions, now: int) -> int | None:
    """Return the time at which an entry written now expires, or None."""
    return None if options.ttl is None else now + max(1, round(options.ttl * 1000))


def apply_reducer(reducer: str, key: str, current: Any, given: Any) -> Any:
    """Return the value of a key after a write. `append` adds an item, `merge` goes into objects, `sum` adds numbers."""
    if reducer == "overwrite":
        return given
    if reducer == "append":
        items = [] if current is MISSING else _check_type(reducer, key, current, list, "a list")
        return [*items, given]
    if reducer == "merge":
        known = {} if current is MISSING else _check_type(reducer, key, current, dict, "an object")
        return _merge(known, _check_type(reducer, None, given, dict, "an object"))
    total = 0 if current is MISSING else _check_type(reducer, key, current, (int, float), "a number")
    return total + _check_type(reducer, None, given, (int, float), "a number")


def _merge(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    found = dict(known)
    for name, value in given.items():
        before = found.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        found[name] = _merge(before, value) if both else value  # type: ignore[arg-type]
    return found


def _check_type(reducer: str, key: str | None, value: Any, kind: type | tuple[type, ...], words: str) -> Any:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    what = "The given value" if key is None else f"{key!r}"
    raise InvalidValue(
        f"The reducer {reducer} needs {words}, and {what} is {type(value).__name__}. "
        "Nothing was written; overwrite it, or use another reducer."
    )


EdgeName = tuple[str, str, str, str, str]
"""The scope and key of an edge's source, its kind, and the scope and key of its target."""


def edge_name(edge: Edge) -> EdgeName:
    """Return the identity of an edge: there is one of each name."""
    return (edge.scope, edge.source, edge.kind, edge.target_scope, edge.target)


def load_edges(
    edges: EdgeReader, nodes: Iterable[Node], direction: str, kinds: tuple[str, ...], most: int | None = None
) -> list[EdgeStep]:
    """Load every edge at some nodes, with its other end; few queries for each scope and direction.

    With `most`, at most this many edges for each query.
    """
    by_scope: dict[str, list[str]] = {}
    for scope, key in nodes:
        by_scope.setdefault(scope, []).append(key)
    found: list[EdgeStep] = []
    for scope, keys in sorted(by_scope.items()):
        for way in _WAYS[direction]:
            query = EdgeQuery(scope=scope, keys=(), direction=way, kinds=kinds)
            for edge in _query_edges(edges, query, sorted(keys), most):
                source, target = (edge.scope, edge.source), (edge.target_scope, edge.target)
                found.append((source, target, edge) if way == "out" else (target, source, edge))
    return found


def _query_edges(edges: EdgeReader, query: EdgeQuery, keys: list[str], most: int | None) -> list[Edge]:
    """Load every edge at these keys. A full answer may hide more edges, so it is asked again with a larger limit."""
    found: list[Edge] = []
    for start in range(0, len(keys), MAX_QUERY_KEYS):
        asked = replace(query, keys=tuple(keys[start : start + MAX_QUERY_KEYS]), limit=most or query.limit)
        answer = edges(asked)
        while most is None and len(answer) >= asked.limit:
            asked = replace(asked, limit=asked.limit * 8)
            answer = edges(asked)
        found += answer
    return found


def traverse(
    edges: EdgeReader, start: Node, depth: int, direction: str, kinds: tuple[str, ...], limit: int
) -> list[TraversalResult]:
    """Return the keys within `depth` edges of the start, nearest first, each by a shortest path, without the start."""
    paths: dict[Node, tuple[Edge, ...]] = {start: ()}
    level: list[Node] = [start]
    found: list[TraversalResult] = []
    for distance in range(1, depth + 1):
        reached: dict[Node, tuple[Edge, ...]] = {}
        for here, there, edge in load_edges(edges, level, direction, kinds):
            if there not in paths and there not in reached:
                reached[there] = (*paths[here], edge)
        paths.update(reached)
        level = sorted(reached)
        found += [TraversalResult(scope=one[0], key=one[1], depth=distance, path=reached[one]) for one in level]
        if not level or len(found) >= limit:
            break
    return found[:limit]
