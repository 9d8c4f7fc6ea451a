"""A frame with evidence: attach something, follow it, and see that the same text is read again."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.journal.artifacts import prepare_artifact
from holdfast.flow.packs import handles
from holdfast.flow.packs.handles import HandleText
from holdfast.ports import Env
from holdfast.records.events.envelope import AppFacts, Draft, Facts
from holdfast.records.packs import Origin
from holdfast.records.recovery import HandleInfo

ACTOR = "actor/main"


class Evidence:
    """One frame of a client, and what its handles lead to."""

    def __init__(self, hf: holdfast.Holdfast, scope: str = ACTOR, **ports: Any) -> None:
        self.hf, self.scope = hf, scope
        self.env: Env = replace(hf.env, **ports)
        self.frame = hf.index.push_frame("work", scope=scope)

    def attach(self, kind: str, target: str | None = None, **given: Any) -> HandleInfo:
        name = self.hf.index.add_handle(self.frame, kind, target=target, **given)
        return next(one for one in self.hf.index.handles(self.frame) if one.id == name)

    def follow(self, kind: str, target: str | None = None, **given: Any) -> HandleText:
        """What it leads to. Looking writes nothing, and what is of the journal is told again word for word."""
        handle = self.attach(kind, target, **given)
        before = self.hf.journal.position()
        found = handles.resolve_handle(self.env, self.scope, handle)
        if not found.outside:
            assert handles.reload_evidence(self.env, self.origin(handle, found)) == found.text
        assert self.hf.journal.position() == before
        return found

    def origin(self, handle: HandleInfo, found: HandleText) -> Origin:
        return handles.evidence_origin(self.scope, handle, found)

    def again(self, found: HandleText) -> Any:
        """The same text later."""
        return handles.reload_evidence(self.env, self.origin(handle_to("event_ref", None), found))

    def happen(self, type_name: str, facts: Facts, content: Any = None, stream: str = ACTOR, **given: Any) -> str:
        """An event as some other part of the library writes it; gives its id."""
        draft = Draft(type=type_name, facts=facts, content=content, **given)
        appended = append_events(self.env, [StreamWrite(stream=stream, events=(draft,))])
        return f"{stream}@{appended.parts[0].first}"

    def keep(self, body: bytes, subject: str | None = None) -> str:
        """An artifact; gives its name."""
        placed = prepare_artifact(self.env, body)
        facts = AppFacts(artifacts=(placed.name.hex(),))
        draft = Draft(type="app.kept", facts=facts, subject=subject)
        append_events(self.env, [StreamWrite(stream="custom/kept/id/1", events=(draft,))], [placed])
        return placed.name.hex()


def handle_to(kind: str, target: Any, **given: Any) -> HandleInfo:
    """A handle that nobody attached."""
    known: dict[str, Any] = {
        "id": "h", "kind": kind, "priority": 50, "position": 1, "tokens": None, "version": 1, "removed": None,
        "description": None, "target": target, "body": None, "metadata": None, "trust": "system",
    }  # fmt: skip
    return HandleInfo(**(known | given))
