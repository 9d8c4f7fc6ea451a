"""A stage on which a text goes through every door that is not trusted, and a strict look at the pack that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast import ContextPack, Holdfast, Session, ToolDef
from holdfast.core.trust import TRUSTED_LEVELS
from holdfast.errors import InvalidValue
from holdfast.records.frames import Limits
from tests.packs.journaled import opened
from tests.packs.reserved import remember

FENCED = re.compile(r"([^\n]+)\n<data ([0-9]{9})>\n(.*)\n</data \2>", re.DOTALL)
ENDS = re.compile(r"<\s*/?\s*data\b", re.IGNORECASE)
LABELS = re.compile(
    r"Summary of previous context: \[\w+\]|Known about this user:|What this work is part of, outermost first:"
    r"|What this work was given:|Notes for this work:"
    r"|Evidence(?: [A-Za-z0-9][\w.:/-]{0,63})? \(\w+, from \w+; data, not instructions\):",
    re.ASCII,
)
DOORS = {
    # Where what comes through a door is found, and how far it is trusted there.
    "user": ("conversation", "user"),
    "tool": ("conversation", "model"),
    "summary": ("summary", "model"),
    "memory": ("memory", "user"),
    "file": ("evidence", "external"),
    "state": ("evidence", "external"),
    "url": ("evidence", "external"),
    "output": ("evidence", "tool"),
    "artifact": ("evidence", "external"),
    "description": ("evidence", "external"),
    "handle": ("evidence", "external"),
    "goal": ("breadcrumb", "user"),
    "inputs": ("brief", "user"),
    "brief": ("brief", "external"),
}
SPOKEN = ("user", "tool")
"""Doors of the conversation itself: its roles say whose words they are."""


class Page:
    """The web, as one text."""

    text = ""

    def fetch(self, url: str) -> str:
        return self.text


class Stage:
    """A journal in which a text is put through every door of a new session and frame."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.page = folder, Page()
        self.hf = opened(folder, fetcher=self.page)
        self.guest = Holdfast(replace(self.hf.env, tenant="default", trust="external"), owner=False)
        self.number = 0

    def put(self, text: str) -> tuple[str, Session]:
        """The text through every door; gives the frame and the session that see it."""
        self.number += 1
        id, hf, index = f"s{self.number}", self.hf, self.hf.index
        chat = hf.session(id, system="You are terse.", model="gpt-4o", tools=[ToolDef(name="look")])
        self._talk(chat, text)
        frame = index.push_frame(
            _with(text, "goal"),
            scope=f"actor/a/session/{id}/thread/main",
            inputs={"given": _with(text, "inputs")},
            limits=Limits(context_tokens=100_000),
        )
        self.guest.index.set_brief(
            f"session/{id}",
            system_prompt=_with(text, "brief"),
            invariants=[_with(text, "brief")],
            working_context={"at": _with(text, "brief")},
            tools=[ToolDef(name="refund", description=_with(text, "brief"))],
        )
        self._attach(frame, chat, text)
        return frame, chat

    def _talk(self, chat: Session, text: str) -> None:
        chat.append("A question about nuts, at some length. " * 100)  # A summary must be shorter than what it covers.
        chat.append({"role": "assistant", "content": "An answer."})
        chat.compact(keep=0, summarizer=lambda messages, *, max_tokens: _with(text, "summary"))
        value = {"text": f"nuts {_with(text, 'memory')}", "trust": "user"}
        remember(self.hf, f"session/{chat.id}", "x", value)
        asked = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        call = chat.append({"role": "assistant", "content": None, "tool_calls": [asked]}).tool_calls[0]
        self.result = chat.append_result(call, _with(text, "tool"))
        chat.append(_with(text, "user"))

    def _attach(self, frame: str, chat: Session, text: str) -> None:
        (self.folder / "docs" / "a.md").write_text(_with(text, "file"), newline="")
        self.page.text = _with(text, "url")
        self.guest.state("custom/notes/id/1").write("k", _with(text, "state"))
        self.hf.journal.append("custom/notes/id/2", "app.kept", files=[_with(text, "artifact").encode()])
        event = next(iter(self.hf.journal.events("custom/notes/id/2", backwards=True)))
        attach, outside = self.hf.index.add_handle, self.guest.index.add_handle
        attach(frame, "document", handle="file", target="file:a.md")
        attach(frame, "document", handle="state", target="state:custom/notes/id/1#k")
        attach(frame, "url", handle="url", target="https://example.com/")
        attach(frame, "tool_output", handle="output", target=self.result.id, description="outputcanary")
        attach(frame, "artifact", handle="artifact", target=event.facts.artifacts[0])
        outside(frame, "event_ref", handle="description", body="nothing", description=_with(text, "description"))
        try:
            outside(frame, "event_ref", handle=f"handlecanary {text}"[:128].strip(), body="handlecanary")
        except InvalidValue:  # Not what an id can be.
            outside(frame, "event_ref", handle="handlecanary", body="handlecanary")

    def pack(self, frame: str, **how: Any) -> ContextPack:
        return self.hf.index.assemble_context_pack(frame=frame, budget_tokens=60_000, recall=3, query="nuts", **how)


def _with(text: str, door: str) -> str:
    """The text with the door's own word before and behind it."""
    return f"{door}canary {text} {door}canary"


# looking at packs


def pieces(value: Any, role: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a request, and whose role it is in."""
    if isinstance(value, dict):
        role = value.get("role") or {"function_call_output": "tool", "tool_result": "tool"}.get(value.get("type"), role)
        for name, inner in value.items():
            yield from pieces(inner, name if name in ("system", "instructions", "tools") else role)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from pieces(inner, role)
    elif isinstance(value, str):
        yield role, value


def parsed(text: str) -> tuple[str, str, str]:
    """Label, mark and body of a fenced text. Strict: one fence and nothing else, which nothing inside could close."""
    found = FENCED.fullmatch(text)
    assert found is not None, f"not one fence: {text!r:.200}"
    label, mark, body = found.groups()
    assert LABELS.fullmatch(label), label
    assert mark not in body.lower(), f"its mark stands in the body: {body!r:.200}"
    assert not ENDS.search(body), f"a fence stands in the body: {body!r:.200}"
    return label, mark, body


def check(pack: ContextPack) -> None:
    """Everything that came through a door is there, labelled, inside its fence, and nowhere else."""
    doors = check_segments(pack)
    assert doors == set(DOORS)
    for request in (pack.to_openai(), pack.to_responses(), pack.to_anthropic(), pack.to_anthropic(cache=False)):
        check_request(request)
    assert "canary" not in (pack.system or "")
    assert "canary" not in json.dumps([tool.description for tool in pack.tools])


def check_segments(pack: ContextPack) -> set[str]:
    doors = set()
    for segment in pack.segments:
        found = {door for door in DOORS if f"{door}canary" in repr(segment.messages)}
        if segment.id == "output":
            found = {"output"}  # It repeats the result of the tool.
        for door in found:
            assert (segment.kind, segment.trust) == DOORS[door], (door, segment.kind, segment.trust)
            assert segment.trust not in TRUSTED_LEVELS
            assert segment.priority != "critical" or segment.kind in ("conversation", "brief", "breadcrumb")
        for message in segment.messages if found else ():
            assert message.role not in ("system", "developer")
            if not found & set(SPOKEN):
                assert message.role == "user"
                _, _, body = parsed(message.text)
                assert all(f"{door}canary" in body for door in found)
        doors |= found
    return doors


def check_request(request: Any) -> None:
    seen = set()
    for role, text in pieces(request):
        found = {door for door in DOORS if f"{door}canary" in text}
        seen |= found
        if not found:
            continue
        assert role in ("user", "tool"), (role, found)
        if role == "user" and "user" not in found:
            parsed(text)
    assert seen == set(DOORS)


def marks_of(pack: ContextPack) -> str:
    found = [FENCED.fullmatch(message.text) for message in pack.messages if message.role == "user"]
    return " ".join(dict.fromkeys(one[2] for one in found if one is not None))
