"""The relations of a store in Cozo, made when it is opened.

A process that is killed while it makes them leaves the rest to the next one.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import NewerSchema, Refused
from holdfast.store.cozo_engine import CozoEngine

FORMAT: Final = 1
VECTORS: Final = ("vector", "vector:near")
"""These are made with the first vector, whose length they take."""

_RELATIONS = {
    "entry": """:create entry {scope: String, key: String =>
        version: Int, value: String, written_at: Int, expires_at: Int, lifetime: String, rest: Bytes}""",
    "words": ":create words {scope: String, key: String => expires_at: Int, text: String}",
    "words:found": "::fts create words:found {extractor: text, tokenizer: Simple, filters: [Stemmer('english')]}",
    "edge": """:create edge {scope: String, source: String, kind: String, target_scope: String, target: String =>
        weight: Float?, data: String}""",
    "edge:incoming": "::index create edge:incoming {target_scope, target, kind, scope, source}",
    "about": ":create about {name: String => value: Any}",
}


def names(engine: CozoEngine) -> set[str]:
    """Which relations and indexes there are."""
    return {row[0] for row in engine.read("::relations")}


def about(engine: CozoEngine) -> dict[str, object]:
    """What the database says about itself."""
    return {str(name): value for name, value in engine.read("?[name, value] := *about{name, value}")}


def prepare(engine: CozoEngine) -> None:
    """Make what is missing; refuse a database that is somebody else's, or of a later release."""
    there = names(engine)
    foreign = sorted(there - _RELATIONS.keys() - set(VECTORS))
    if foreign:
        raise Refused(f"{engine.name} was made by something else: it has {foreign[0]!r}. Give the path of a new file.")
    for name, script in _RELATIONS.items():
        if name not in there:
            engine.write(script)
    known = about(engine)
    if not known:
        engine.write(f"?[name, value] <- [['format', {FORMAT}], ['version', 0]] :put about {{name => value}}")
    elif known.get("format") != FORMAT:
        raise NewerSchema(f"{engine.name} was written by a later release of holdfast. Upgrade holdfast to open it.")
