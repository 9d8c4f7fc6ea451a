"""One call of each kind, so that no run is without it."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, Session
from holdfast.records.frames import Limits
from tests.packs.journaled import Shown, noted

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
LONG = "amber birch cobalt " * 100
SAID = "We spoke of amber, birch and cobalt. " * 50
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOKENIZERS = {"gpt-4o": "o200k_base", "gpt-4": "cl100k_base", "claude-sonnet-4-5": "estimate:1.6"}
EVERYTHING = {
    *("system", "tools", "entry", "inputs", "note", "breadcrumb", "summary", "conversation", "marker", "memory"),
    *("event_ref", "tool_output", "artifact", "document", "url", "inherited", "event_ref cut"),
    *("none", "light", "moderate", "aggressive", "critical"),
    *("stable", "classic", "main", "cook"),
    *TOKENIZERS.values(),
    *("limited by context_tokens", "limited by available"),
    *("conversation light", "conversation results", "conversation text", "image", "interrupted"),
}


class Once:
    """Calls that have everything among them."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.calls: list[Shown] = []

    def all(self) -> list[Shown]:
        for number, model in enumerate(TOKENIZERS):
            chat = self.hf.session(f"once{number}", model=model, system="Be kind.", tools=[TOOL])
            chat.packs.set_brief("cook", invariants=["Never guess."])
            self._talk(chat)
            self._frames(chat)
        return self.calls

    def _talk(self, chat: Session) -> None:
        asked = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        chat.append(["about nuts", {"role": "assistant", "content": "yes"}])
        chat.compact(keep=0, store=True)
        self._line(chat, recall=2, query="nuts")
        chat.append({"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]})
        said = chat.append({"role": "assistant", "content": None, "tool_calls": asked})
        self._line(chat)
        chat.append_result(said.tool_calls[0], f"{LONG} {LONG}")
        chat.append(f"{SAID}\n\n\n\n{SAID}")
        chat.append("short")
        for level in ("none", "light", "moderate", "aggressive", "critical"):
            self._line(chat, min_compaction=level, role="cook", layout="classic")
        self._line(chat, budget=1_500, stickiness=0)
        self._line(chat, budget=1_500)
        chat.append(LONG * 5)
        self._line(chat, budget=1_200)

    def _frames(self, chat: Session) -> None:
        index, hf = self.hf.index, self.hf
        scope = f"actor/once/session/{chat.id}/thread/main"
        root = index.push_frame("everything", scope=scope, inputs={"n": 1}, limits=Limits(context_tokens=9_000))
        hf.state("custom/once/id/1").write("k", "of the state")
        hf.journal.append("custom/once/id/1", "app.kept", {"text": "of an event"}, files=[b"of an artifact"])
        event = next(iter(hf.journal.events("custom/once/id/1", types=["app.kept"])))
        call = index.begin_tool_call(root, "look")
        index.end_tool_call(root, call, value="of a tool")
        given: list[tuple[str, dict[str, Any]]] = [
            ("event_ref", {"target": event.id}),
            ("event_ref", {"body": LONG * 6, "priority": "critical", "handle": "long"}),
            ("tool_output", {"call": call}),
            ("artifact", {"target": event.facts.artifacts[0]}),
            ("document", {"target": "state:custom/once/id/1#k"}),
            ("url", {"target": "https://example.com/"}),
            ("url", {"body": "a copy", "handle": "copy"}),
        ]
        for kind, how in given:
            index.add_handle(root, kind, **how)
        self._frame(root, budget_tokens=20_000)
        self._frame(root, budget_tokens=2_500)
        child = index.push_frame("below", parent=root, inherit=["copy"], tokens=1_500)
        self._frame(child)

    def _line(self, chat: Session, **how: Any) -> None:
        pack = chat.pack(**how)
        self.calls.append(noted(chat.packs.begin_model_call(pack), pack, lambda cursor: chat.pack(as_of=cursor, **how)))

    def _frame(self, frame: str, **how: Any) -> None:
        make = self.hf.index.assemble_context_pack
        pack = make(frame=frame, **how)
        call = self.hf.index.begin_model_call(frame, pack)
        self.calls.append(noted(call, pack, lambda cursor: make(frame=frame, as_of=cursor, **how)))
