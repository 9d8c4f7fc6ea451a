"""Somebody at work whose model calls are journaled: everything that a pack may show, in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast import ContextPack, Holdfast, HoldfastError, Session
from holdfast.core.wire.read import read_input
from holdfast.flow.sessions import append
from holdfast.records.frames import Limits
from holdfast.records.messages import Message, ToolCallResult
from tests.packs.journaled import Shown, noted

MODELS = ("gpt-4o", "gpt-4", "claude-sonnet-4-5")
WORDS = ("amber", "birch", "cobalt", "dahlia", "elm", "fjord", "garnet", "hazel", "née", "東京", "🙂", "<data>")
PRIORITIES = ("critical", "high", "medium", "low", "background")
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "expand", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "search_history", "parameters": {"type": "object"}}},
]


class AtWork:
    """Sessions of three models, frames in and beside them, and packs of all of it."""

    def __init__(self, hf: Holdfast, folder: Path, random: Random) -> None:
        self.hf, self.folder, self.random = hf, folder, random
        self.calls: list[Shown] = []
        self.refused = 0
        self.lines: list[Session] = []
        self.frames: list[str] = []
        self.torn: list[tuple[Session, Any]] = []
        self._artifacts: list[str] = []
        for number, model in enumerate(MODELS):
            chat = hf.session(f"s{number}", model=model, system=f"You are {model}.", tools=TOOLS[: number + 1])
            self.lines.append(chat)
            for _ in range(4):
                self.say(chat)
            scope = f"actor/a{number}/session/s{number}/thread/main"
            self.frames.append(
                hf.index.push_frame("the root of all work", scope=scope, limits=Limits(context_tokens=3_000, depth=5))
            )
        alone = hf.index.push_frame("alone", scope="actor/alone", inputs={"given": "by hand"}, tokens=500_000)
        self.frames.append(alone)
        for frame in list(self.frames):
            self.attach(frame)
        copied = hf.index.add_handle(alone, "url", target="nowhere", body="as it was copied", priority="high")
        self.frames.append(hf.index.push_frame("below", parent=alone, inherit=[copied], tokens=200_000))

    # saying

    def words(self, most: int = 12) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def line(self) -> Session:
        return self.random.choice(self.lines)

    def say(self, chat: Session | None = None) -> None:
        chat = chat or self.line()
        text = self.words()
        if self.random.random() < 0.2:
            text = "\n\n\n\n".join(self.words(90).capitalize() + ".   " for _ in range(self.random.randint(2, 9)))
        chat.append(text, policy="pinned" if self.random.random() < 0.04 else None)
        if self.random.random() < 0.6:
            chat.append({"role": "assistant", "content": self.words(40)})

    def picture(self) -> None:
        parts = [{"type": "text", "text": self.words()}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        self.line().append({"role": "user", "content": parts})

    def instruct(self) -> None:
        self.line().append({"role": self.random.choice(("system", "developer")), "content": self.words()})

    def tools(self) -> None:
        """Calls in parallel, most of them answered, some late, in another order, or never."""
        chat = self.line()
        asked = [
            {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": "look", "arguments": f'{{"at": "{self.words()}"}}'},
            }
            for n in range(self.random.choice((1, 1, 2, 3)))
        ]
        said = chat.append({"role": "assistant", "content": self.words(), "tool_calls": asked})
        if self.random.random() < 0.2:
            given = [ToolCallResult(tool_call_id=call.id, result=self.words(30)) for call in reversed(said.tool_calls)]
            chat.append(Message(role="tool", tool_results=tuple(given[:2])))
            self.torn += [(chat, call) for call in said.tool_calls[:-2]]
            return
        for call in self.random.sample(said.tool_calls, len(said.tool_calls)):
            if self.random.random() < 0.85:
                chat.append_result(
                    call, self.words(self.random.choice((5, 60, 900))), is_error=self.random.random() < 0.1
                )
            else:
                self.torn.append((chat, call))

    def late(self) -> None:
        if self.torn:
            chat, call = self.torn.pop(self.random.randrange(len(self.torn)))
            chat.append_result(call, {"late": self.words(30)})

    # editing

    def rewind(self) -> None:
        chat = self.line()
        messages = chat.messages(6)
        if len(messages) > 2:
            chat.rewind(to=self.random.choice(messages[1:]))

    def fork(self) -> None:
        chat = self.line()
        messages = chat.messages(8)
        if len(self.lines) < 8 and messages:
            self.lines.append(chat.fork(self.random.choice(messages)))

    def pin(self) -> None:
        chat = self.line()
        messages = chat.messages(20)
        if messages:
            (chat.pin if self.random.random() < 0.4 else chat.unpin)(self.random.choice(messages))

    def compact(self) -> None:
        self.line().compact(
            keep=self.random.randint(1, 5), whole=self.random.random() < 0.3, store=self.random.random() < 0.8
        )

    def reset(self) -> None:
        if self.random.random() < 0.2:
            self.lines[1].reset()
            self.lines = [one for one in self.lines if one.id != "s1" or one.thread == "main"]
            self.torn = [one for one in self.torn if one[0].id != "s1"]

    def brief(self) -> None:
        chat, role = self.line(), self.random.choice(("main", "cook"))
        given: list[dict[str, Any]] = [
            {"system_prompt": self.words()},
            {"invariants": [self.words(), self.words()]},
            {"working_context": {"at": self.words()}, "tools": self.random.sample(TOOLS, 2)},
            {},
        ]
        chat.packs.set_brief(role, **self.random.choice(given))
        if self.random.random() < 0.3:
            self.guest().packs.set_brief("main", working_context=self.words(30), invariants=[self.words()])

    def guest(self) -> Session:
        """A session in the hands of somebody who may not instruct."""
        chat = self.line()
        return Session(replace(chat._env, tenant="default", trust="user"), chat.id, chat.thread)

    # frames and evidence

    def push(self) -> None:
        parent = self.random.choice(self.frames)
        own = [one.id for one in self.hf.index.handles(parent) if one.removed is None]
        given = self.random.sample(own, min(len(own), self.random.randint(0, 4)))
        inputs = self.random.choice((None, {"n": 1, "text": self.words()}))
        limited = self.hf.index.get_frame(parent).tokens.available is not None
        tokens = 0.3 if limited else self.random.choice((None, 2_000))
        frame = self.hf.index.push_frame(self.words(60), parent=parent, inputs=inputs, inherit=given, tokens=tokens)
        self.frames.append(frame)

    def pop(self) -> None:
        leaves = [frame for frame in self.frames[5:] if self.hf.index.get_frame(frame).status == "active"]
        if len(leaves) > 3:
            gone = self.random.choice(leaves)
            self.hf.index.pop_frame(gone, value="done")
            self.frames.remove(gone)

    def murmur(self) -> None:
        """Something said in a frame."""
        frame = self.random.choice(self.frames)
        append.append_frame_messages(self.hf.env, frame, read_input(self.words(30)))

    def rename(self) -> None:
        self.hf.index.update_frame(self.random.choice(self.frames), goal=self.words(30))

    def attach(self, frame: str | None = None) -> None:
        frame = frame or self.random.choice(self.frames)
        index, kept = self.hf.index, self.hf.state("custom/notes/id/1")
        name = self.random.choice("pqr")
        kept.write(name, self.random.choice((self.words(40), {"n": self.words()})))
        (self.folder / "docs" / "a.md").write_text(self.words(80))
        chat = self.line()
        said = chat.messages(1)
        message = said[0].id if said else None
        stream = chat._thread_stream
        noted = self.hf.journal.append(
            "custom/notes/id/2", "app.noted", {"text": self.words()}, files=[self.words(50).encode()]
        )
        event = next(iter(self.hf.journal.events("custom/notes/id/2", backwards=True)))
        artifact = event.facts.artifacts[0]
        call = index.begin_tool_call(self.frames[3], "look")
        index.end_tool_call(self.frames[3], call, value={"found": self.words(60)})
        wanted: list[tuple[str, dict[str, Any]]] = [
            ("event_ref", {"target": event.id}),
            ("event_ref", {"body": self.words(200)}),
            ("artifact", {"target": artifact}),
            ("document", {"target": f"state:custom/notes/id/1#{name}"}),
            ("document", {"target": "file:a.md"}),
            ("url", {"target": "https://example.com/a"}),
            ("url", {"target": "nowhere", "body": "as it was copied"}),
            ("document", {"target": "file:not-there.md"}),
        ]
        if message:
            wanted += [("event_ref", {"target": message}), ("tool_output", {"target": f"{stream}@{said[0].version}"})]
        if frame == self.frames[3]:
            wanted.append(("tool_output", {"call": call}))
        for kind, given in self.random.sample(wanted, 4):
            untrusted = self.random.random() < 0.3
            outside = kind not in ("event_ref", "document") or given.get("target", "").startswith("file:")
            ranked = self.random.choice(PRIORITIES)
            if ranked == "critical" and (untrusted or outside):
                ranked = "high"
            index.add_handle(
                frame,
                kind,
                handle=self.random.choice((None, None, "h1", "née / 1")),
                description=self.random.choice((None, self.words())),
                priority=ranked,
                trust="external" if untrusted else None,
                **given,
            )
        del noted

    def detach(self) -> None:
        frame = self.random.choice(self.frames)
        own = [one.id for one in self.hf.index.handles(frame) if one.removed is None]
        if own:
            gone = self.hf.index.remove_handle(frame, self.random.sample(own, min(2, len(own))))
            if gone is not None and self.random.random() < 0.5:
                self.hf.index.restore_handles(frame, gone)

    def squeeze(self) -> None:
        """The context of a frame made smaller, and perhaps whole again."""
        frame = self.random.choice(self.frames)
        strategy = self.random.choice(("priority", "policy_trim", "summarise_oldest", "truncate_at"))
        made = self.hf.index.compact_context(frame, 200, strategy, keep=2)
        if made.id is not None and self.random.random() < 0.7:
            self.hf.index.restore_handles(frame, made.id)

    # packing

    def asked(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "role": self.random.choice(("main", "main", "cook", "guest")),
            "layout": self.random.choice(("stable", "stable", "classic")),
            "min_compaction": self.random.choice(("none", "none", "light", "moderate", "aggressive", "critical")),
            "recall": self.random.choice((None, 3)),
            "query": self.random.choice((None, self.words(4))),
        }
        if self.random.random() < 0.5:
            given["stickiness"] = self.random.choice((0, 0.2))
        if self.random.random() < 0.2:
            given["tokenizer"] = self.random.choice(("o200k_base", "cl100k_base"))
        return given

    def pack_line(self) -> None:
        chat = self.line()
        most = self.random.choice((None, None, None, 12))
        how = {"budget": self.random.choice((700, 1_500, 4_000, None)), "max_messages": most} | self.asked()
        pack = chat.pack(**how)
        self.note(chat.packs.begin_model_call(pack), pack, lambda cursor: chat.pack(as_of=cursor, **how))

    def pack_frame(self) -> None:
        frame = self.random.choice(self.frames)
        own = [one.id for one in self.hf.index.handles(frame)]
        how = self.asked() | {
            "budget_tokens": self.random.choice((700, 1_500, 4_000, None)),
            "include_handles": self.random.sample(own, min(len(own), 1)) if self.random.random() < 0.3 else (),
            "exclude_handles": self.random.sample(own, min(len(own), 1)) if self.random.random() < 0.2 else (),
        }
        make = self.hf.index.assemble_context_pack
        pack = make(frame=frame, **how)
        call = self.hf.index.begin_model_call(frame, pack, request={"temperature": 0})
        self.note(call, pack, lambda cursor: make(frame=frame, as_of=cursor, **how))
        if self.random.random() < 0.8:
            self.hf.index.end_model_call(frame, call, usage=holdfast.Usage(input=10, output=5))

    def note(self, call: str, pack: ContextPack, again: Callable[[int], ContextPack]) -> None:
        self.calls.append(noted(call, pack, again))

    def moves(self) -> tuple[Callable[[], None], ...]:
        often = (self.say, self.say, self.tools, self.tools, self.late, self.murmur, self.attach, self.push)
        rarely = (self.picture, self.instruct, self.rewind, self.fork, self.pin, self.compact, self.reset, self.brief)
        return (*often, *often, *rarely, self.pop, self.rename, self.detach, self.squeeze)

    def step(self) -> None:
        """Something happens, and then a model is called."""
        for what in (*self.random.choices(self.moves(), k=2), self.random.choice((self.pack_line, self.pack_frame))):
            try:
                what()
            except HoldfastError as error:
                self.refused += 1
                self.last = error

    def work(self, calls: int) -> None:
        while len(self.calls) < calls:
            self.step()
