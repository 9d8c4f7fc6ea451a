"""What messages cost with a tokenizer: as their rows say, as somebody counted them before, else counted now."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.counting import Framing, message_tokens
from holdfast.flow.conversation.lines import Place, runs
from holdfast.ports import Acting, Ports, Tokenizer
from holdfast.records.messages import Message
from holdfast.records.rows import Span


def counted(
    ports: Ports,
    acting: Acting,
    found: Sequence[Place],
    messages: Sequence[Message],
    kept_as: str,
    tokenizer: Tokenizer,
    framing: Framing,
) -> tuple[list[Message], dict[str, tuple[tuple[int, int], ...]]]:
    """The messages with what each costs with this tokenizer, and the counts that nobody had made before."""
    strange = [one for one in found if one.row["tokenizer"] != kept_as or one.row["tokens"] is None]
    known = _known_counts(ports, acting, strange, kept_as)
    fresh: dict[str, list[tuple[int, int]]] = {}
    those = []
    for place, message in zip(found, messages, strict=True):
        tokens = message.tokens if message.tokenizer == kept_as else known.get((place.stream, place.version))
        if message.erased:
            tokens = message_tokens(message, tokenizer.count, framing)  # What is kept counts what it was.
        elif tokens is None:
            tokens = message_tokens(message, tokenizer.count, framing)
            fresh.setdefault(place.stream, []).append((place.version, tokens))
        same = message.tokens == tokens and message.tokenizer == kept_as
        those.append(message if same else replace(message, tokens=tokens, tokenizer=kept_as))
    return those, {stream: tuple(pairs) for stream, pairs in fresh.items()}


def _known_counts(ports: Ports, acting: Acting, strange: Sequence[Place], kept_as: str) -> dict[tuple[str, int], int]:
    known: dict[tuple[str, int], int] = {}
    for stream in dict.fromkeys(place.stream for place in strange):
        for run in runs(sorted({place.version for place in strange if place.stream == stream})):
            first, last = min(run), max(run)
            span = Span(table="message_counts", after=first - 1, until=last, limit=last - first + 1, prefix=(kept_as,))
            for row in ports.journal.span(acting.tenant, stream, span):
                known[stream, int(row["version"] or 0)] = int(row["tokens"] or 0)
    return known
