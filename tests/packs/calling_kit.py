"""A client, a session and a frame in it, from which model calls are begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.extras.documents import DocumentRoot
from holdfast.testing.clock import FrozenClock
from tests.packs.journaled import Web

SCOPE = "actor/main/session/s/thread/main"
LINE = "session/s/thread/main"
SETTINGS = holdfast.Settings(inline_artifact_bytes=100)


class At:
    """A client, a session, a frame in it that has evidence of its own and from outside, and a clock."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.clock = folder, FrozenClock()
        (folder / "docs").mkdir()
        (folder / "docs" / "a.md").write_text("a file that is kept beside the journal " * 10)
        self.hf = holdfast.open(
            url,
            durability="fast",
            clock=self.clock,
            settings=SETTINGS,
            documents=DocumentRoot(folder / "docs"),
            fetcher=Web(),
        )
        self.chat = self.hf.session("s", system="Be kind.", model="gpt-4o")
        self.chat.append(["one", "two", "three"])
        self.frame = self.push(SCOPE)

    def push(self, scope: str, **how: Any) -> str:
        frame = self.hf.index.push_frame("work", scope=scope, **how)
        self.hf.index.add_handle(frame, "document", handle="file", target="file:a.md")
        self.hf.index.add_handle(frame, "event_ref", handle="body", body="evidence")
        return frame

    def pack(self, frame: str | None = None, **how: Any) -> holdfast.ContextPack:
        return self.hf.index.assemble_context_pack(frame=frame or self.frame, **how)

    def files(self) -> list[Path]:
        return [path for path in self.folder.glob("*-artifacts/*/*") if path.is_file()]

    def new(self, after: int) -> list[Any]:
        return [event for event in self.hf.journal.events() if event.seq > after]
