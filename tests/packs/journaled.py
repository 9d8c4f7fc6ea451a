"""Model calls that were journaled, and what each was sent: what tests of journaled packs have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import ContextPack, Holdfast
from holdfast.extras.documents import DocumentRoot
from holdfast.records.messages import Message
from holdfast.records.packs import Origin

EVIDENCE = ("event_ref", "tool_output", "artifact", "document", "url")


class Shown(NamedTuple):
    """A journaled call, and what its model was sent."""

    call: str
    digest: str
    requests: tuple[Any, Any, Any, Any]
    kinds: frozenset[str]
    """Everything that there is to it: parts, cuts, level, layout, role."""
    tokens: tuple[int, int]
    cursor: int
    """Where the journal stood when it was packed."""
    again: Callable[[int], ContextPack]
    """The same pack as of a cursor."""


class Web:
    """A page that is another one each time."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetch(self, url: str) -> str:
        self.fetched += 1
        return f"page {self.fetched} of {url}"


def told(messages: Sequence[Message], *, max_tokens: int) -> str:
    """A summarizer that repeats how everything began."""
    return " / ".join(message.text[:20] for message in messages)[: max_tokens * 2] or "nothing"


def opened(folder: Path, name: str = "a.db", **how: Any) -> Holdfast:
    """A client with leave to read files and to fetch."""
    (folder / "docs").mkdir(exist_ok=True)
    settings = holdfast.Settings(inline_text_bytes=2_000, abbreviate_chars=600)
    given = {"settings": settings, "durability": "fast", "summarizer": told, "fetcher": Web()} | how
    return holdfast.open(folder / name, documents=DocumentRoot(folder / "docs"), **given)


def sent(pack: ContextPack) -> tuple[Any, Any, Any, Any]:
    """What a provider of each kind is sent."""
    return pack.to_openai(), pack.to_responses(), pack.to_anthropic(), pack.to_anthropic(cache=False)


def kinds_of(pack: ContextPack) -> frozenset[str]:
    """Everything that there is to a pack, by name."""
    origins = [(one, origin) for one in pack.segments for origin in one.origins]
    kinds = {origin.part or one.kind for one, origin in origins}
    steps = [(one.kind, step) for one, origin in origins if not origin.part for step in (origin.cut or "").split(",")]
    cuts = {f"{kind} {step.partition(':')[0]}" for kind, step in steps if step}
    cuts |= {f"{origin.part} cut" for _, origin in origins if origin.cut and origin.part in EVIDENCE}
    kinds |= {"inherited" for _, origin in origins if _is_inherited(origin)}
    kinds |= {"interrupted" for one in pack.messages for result in one.tool_results if result.interrupted}
    kinds |= {"image" for one in pack.messages if isinstance(one.content, list)}
    kinds |= {f"trust {one.trust}" for one in pack.segments}
    limited = f"limited by {pack.limited_by}"
    return frozenset(
        kinds | cuts | {pack.level.value, pack.metadata.layout, pack.metadata.role, pack.tokenizer, limited}
    )


def noted(call: str, pack: ContextPack, again: Callable[[int], ContextPack]) -> Shown:
    """A call that was journaled just now."""
    tokens = (pack.tokens, sum(one.estimated_tokens for one in pack.segments))
    return Shown(call, pack.digest, sent(pack), kinds_of(pack), tokens, pack.metadata.log_seq, again)


def _is_inherited(origin: Origin) -> bool:
    """A body that stands in the event of another handle than this one."""
    own = (origin.stream, origin.first) == (origin.handle_stream, origin.handle_version)
    return origin.part == "url" and origin.artifact is None and not own


def check(hf: Holdfast, calls: list[Shown]) -> None:
    """Every one of them is what it was, in the form of every provider, and cost the same."""
    for one in calls:
        pack = hf.index.pack_at(one.call)
        assert pack.digest == one.digest
        assert sent(pack) == one.requests
        assert (pack.tokens, sum(segment.estimated_tokens for segment in pack.segments)) == one.tokens
        assert (pack.metadata.erased, pack.metadata.reconstructed) == ((), False)
