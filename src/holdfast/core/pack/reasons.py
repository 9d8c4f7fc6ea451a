"""Why something is in a pack or not: one word in the journal, a sentence for people."""

from __future__ import annotations

from typing import Final

from holdfast.core.pack.items import ItemForm
from holdfast.records.packs import Decision

REASONS: Final[dict[str, str]] = {
    "always": "always shown",
    "newest": "the newest round is always shown",
    "pinned": "pinned, so it is always shown",
    "question": "the turn answers it, so it comes before older messages",
    "first": "the first instructions are always shown",
    "critical": "critical evidence is always shown",
    "asked_for": "asked for by name",
    "fits": "there was room",
    "window": "within the window",
    "edge": "at the edge of the window, with its tool outputs shortened",
    "older": "older than the window",
    "covered": "a summary stands for it",
    "no_room": "no room was left for it",
    "level": "left out at this level of compaction",
    "excluded": "excluded by the caller",
    "failed": "could not be read",
    "not_read": "not looked at: more important evidence filled the pack",
    "missing": "asked for by name, and not to be found",
    "erased": "its content was erased",
    "cut": "it was cut out of what is shown",
    "repeated": "a summary repeats it",
    "retracted": "it had been taken back",
    "reset": "it was said before the conversation began anew",
}


def sentence(reason: str) -> str:
    """A reason in words."""
    return REASONS.get(reason, reason)


def decided(whole: ItemForm, form: ItemForm | None, why_not: str) -> Decision:
    """What became of evidence or a memory: the form in which it is shown, or why it is not."""
    item = whole.item
    reason = "critical" if item.critical else "asked_for" if item.mandatory else "fits"
    return Decision(
        id=item.id,
        kind=item.kind,
        outcome="omitted" if form is None else "shortened" if form.segment.shortened else "included",
        reason=why_not if form is None else reason,
        priority=item.priority,
        tokens=whole.tokens,
        shown=0 if form is None else form.tokens,
        trust=item.trust,
    )
