"""What people decide about effects that wait: to try them again, to let them go, or to take them out.

A decision is made on the row as it is inside the append: whoever was too slow changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import InvalidValue, KeyReused, Refused
from holdfast.flow.change import Drafts, States, change
from holdfast.flow.effect.effects import TRIES, gone, owner_of, row_of, waits
from holdfast.flow.effect.sinks import settled_key
from holdfast.flow.stack.showing import event_at
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED, Content, Draft
from holdfast.records.events.state import EffectRevived, EffectSettled, SettledContent
from holdfast.records.ids import ulid_text
from holdfast.records.rows import Row


def revive(ports: Ports, acting: Acting, effect: str) -> None:
    """Let an effect be tried now, with all its attempts before it."""
    _revive(ports, acting, effect, ("dead", "deferred", "failed"), approved=False)


def approve(ports: Ports, acting: Acting, effect: str) -> None:
    """Let an effect go that waits for approval. Approving twice is done once."""
    _revive(ports, acting, effect, ("approval",), approved=True)


def _revive(ports: Ports, acting: Acting, effect: str, statuses: tuple[str, ...], *, approved: bool) -> None:
    def wanted(row: Row) -> Draft | None:
        status = str(row["status"])
        if status == "pending":
            return None  # It is on its way already.
        if status not in statuses:
            problem = "It waits for approval: approve or reject it." if status == "approval" else "It is approved."
            raise Refused(f"Effect {effect} is {status}. {problem}")
        return Draft(
            type="effect.revived", facts=EffectRevived(effect=effect, sink=str(row["sink"]), approved=approved)
        )

    _decide_now(ports, acting, effect, wanted)


def discard(ports: Ports, acting: Acting, effect: str, reason: str | None, *, only: str | None = None) -> None:
    """Take an effect out of its lane for good. What a sink is being given at this moment may still arrive."""
    if reason is not None and not isinstance(reason, str):
        raise InvalidValue("reason must be a text.")
    content = None if reason is None else SettledContent(reason=reason)

    def wanted(row: Any) -> Draft:
        if only is not None and row["status"] != only:
            raise Refused(f"Effect {effect} is {row['status']} and does not wait for approval. Discard it instead.")
        facts = EffectSettled(effect=effect, sink=row["sink"], outcome="skipped", attempts=row["attempts"])
        return Draft(type="effect.settled", facts=facts, content=content, subject=_whose(ports, acting, row, content))

    _decide_now(ports, acting, effect, wanted, key=settled_key(effect))


def _whose(ports: Ports, acting: Acting, row: Any, content: Content | None) -> str | None:
    """Words about an effect belong to whom the effect belongs to."""
    found = None if content is None else row_of(ports, acting, ulid_text(row["effect_id"]))
    event = None if found is None else event_at(ports, acting, found[0], row["version"])
    return None if event is None or event.content is ERASED else owner_of(event)


def _decide_now(
    ports: Ports, acting: Acting, effect: str, wanted: Callable[[Row], Draft | None], key: str | None = None
) -> None:
    stream, _ = waits(ports, acting, effect)

    def decide(states: States) -> Drafts:
        draft = wanted(waits(ports, acting, effect)[1])
        return {} if draft is None else {stream: [draft]}

    try:
        change(ports, acting, (stream,), decide, key=key, tries=TRIES)
    except KeyReused:
        raise gone(effect) from None  # It was settled while we looked.
