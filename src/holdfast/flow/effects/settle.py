"""Read and settle effects, and record people's decisions: retry, approve or discard.

Every outcome and decision compares the row that was read with the present row, inside the append: an effect is
settled once, and a slower writer changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.core.effects import from_wire, payload_of, subject_of, user_of
from holdfast.core.journal.codec import decode_event, encode
from holdfast.core.values import exception_text, to_plain
from holdfast.errors import EffectNotFound, EffectRefused, InvalidValue, KeyReused, Refused, TooLarge
from holdfast.flow.effects.sinks import settlement_key
from holdfast.flow.frames.read import content_field, parse_id, read_event, row_ulid
from holdfast.flow.journal.append import Drafts, States, decide_and_append, redact_as_configured
from holdfast.flow.state.journal_store import TRIES
from holdfast.ports import Env
from holdfast.records.batches import Row, RowQuery
from holdfast.records.effects import FINAL_STATUSES, EffectInfo, EffectOutcome
from holdfast.records.events.envelope import ERASED, Draft, Event
from holdfast.records.events.state import EffectDeclared, EffectRevived, EffectSettled, SettledContent

PAGE: Final = 100
_COMPARED_COLUMNS: Final = ("status", "attempts", "settled")


def find_effect_row(env: Env, effect: str) -> tuple[str, Row] | None:
    """Return the stream and the row of an unsettled effect, or None."""
    query = RowQuery(table="effects", column="effect_id", value=parse_id(effect, "effect"), limit=1)
    return next(iter(env.journal.select(env.tenant, query)), None)


def read_unsettled_effects(env: Env, wanted: Callable[[Row], bool]) -> Iterator[EffectInfo]:
    """Yield unsettled effects, in order of their ids."""
    after = b""
    while rows := env.journal.select(env.tenant, RowQuery(table="effects", after_key=after, limit=PAGE)):
        for stream, row in rows:
            if wanted(row):
                yield _describe_unsettled(env, stream, row)
        after = rows[-1][1]["effect_id"]  # type: ignore[assignment]


def read_effect(env: Env, effect: str) -> EffectInfo:
    """Return one effect. A settled one has no row and is found by the event that declared it, which has the same id."""
    found = find_effect_row(env, effect)
    if found is not None:
        return _describe_unsettled(env, *found)
    stored = env.journal.event(env.tenant, parse_id(effect, "effect"))
    settled = [] if stored is None else env.journal.events_by_key(env.tenant, stored.stream, settlement_key(effect))
    if stored is None or not settled:
        raise EffectNotFound(
            f"There is no effect {effect} for a sink. Check the id and the tenant. What changed state at once, or was "
            "taken out by middleware, is in Operated.outcomes and in `holdfast log`."
        )
    end = decode_event(settled[0])
    reason, answer = content_field(end, "reason"), content_field(end, "answer")
    now = {"status": end.facts.outcome, "attempts": end.facts.attempts, "retry_at": None}
    return _describe_effect(decode_event(stored), **now, reason=reason, answer=answer)


def require_effect_row(env: Env, effect: str) -> tuple[str, Row]:
    """Return the stream and the row of an effect that must be unsettled."""
    found = find_effect_row(env, effect)
    if found is None:
        raise not_waiting_error(effect)
    return found


def not_waiting_error(effect: str) -> EffectNotFound:
    """Return the error for an effect that can no longer be decided about."""
    return EffectNotFound(f"No effect {effect} waits. It was settled already, or the id or the tenant is wrong.")


def _describe_unsettled(env: Env, stream: str, row: Any) -> EffectInfo:
    event = read_event(env, stream, row["version"])
    assert event is not None, "a row names the event that made it"
    now = {name: row[name] for name in ("status", "attempts", "retry_at")}
    return _describe_effect(event, **now, reason=_read_reason(env, stream, row))


def _describe_effect(event: Event, **now: Any) -> EffectInfo:
    """Describe an effect from the event that declared it and its state now."""
    try:
        payload: Any = ERASED if event.content is ERASED else payload_of(from_wire(event.content.payload))
    except EffectRefused:
        payload = event.content.payload
    facts: EffectDeclared = event.facts
    return EffectInfo(
        id=facts.effect,
        kind=facts.kind,
        sink=facts.sink,
        scope=event.stream,
        operator=facts.operator,
        payload=payload,
        declared_at=event.at,
        **now,
    )


def _read_reason(env: Env, stream: str, row: Any) -> Any:
    return None if row["settled"] is None else content_field(read_event(env, stream, row["settled"]), "reason")


def read_effect_outcome(env: Env, stream: str, effect: str, kind: str, sink: str) -> EffectOutcome:
    """Return the present outcome of a declared effect."""
    now: dict[str, Any]
    found = find_effect_row(env, effect)
    if found is not None:
        now = {"outcome": found[1]["status"], "reason": _read_reason(env, stream, found[1])}
    else:
        event = decode_event(env.journal.events_by_key(env.tenant, stream, settlement_key(effect))[0])
        now = {name: content_field(event, name) for name in ("answer", "reason")} | {"outcome": event.facts.outcome}
    return EffectOutcome(effect=effect, kind=kind, sink=sink, **now)


def settle_effect(
    env: Env,
    stream: str,
    seen: Row,
    outcome: str,
    *,
    attempts: int,
    retry_at: int | None = None,
    answer: Any = None,
    reason: str | None = None,
    subject: str | None = None,
) -> Row | None:
    """Journal an attempt's outcome if the effect's row is unchanged, and return its new row; None if it changed."""
    content = _build_content(env, answer, reason)
    effect = row_ulid(seen, "effect_id")
    facts = EffectSettled(effect=effect, sink=str(seen["sink"]), outcome=outcome, attempts=attempts, retry_at=retry_at)
    draft = Draft(type="effect.settled", facts=facts, content=content, subject=None if content is None else subject)
    key = settlement_key(effect) if outcome in FINAL_STATUSES else None

    def decide(states: States) -> Drafts:
        found = find_effect_row(env, effect)
        same = found is not None and all(found[1][name] == seen[name] for name in _COMPARED_COLUMNS)
        return {stream: [draft]} if same else {}

    changed = decide_and_append(env, (stream,), decide, key=key, tries=TRIES)
    if changed.appended is None or changed.repeated:
        return None
    return {**seen, "status": outcome, "attempts": attempts, "retry_at": retry_at, "settled": changed.version}


def _build_content(env: Env, answer: Any, reason: str | None) -> SettledContent | None:
    """Return a sink's answer as content, as far as it can be stored: the outcome is journaled whatever it is."""
    if answer is None and reason is None:
        return None
    try:
        return _redact_and_check_size(env, SettledContent(answer=to_plain(answer), reason=reason))
    except Refused as error:
        problem = f"What it answered was not kept: {error}"
    except Exception as error:  # noqa: BLE001  an answer is somebody else's object
        problem = f"What it answered was not kept: {exception_text(error)}"
    try:
        return _redact_and_check_size(env, SettledContent(reason=problem))
    except Refused:
        return None  # The redaction hook refuses every text.


def _redact_and_check_size(env: Env, content: SettledContent) -> SettledContent:
    found: SettledContent = redact_as_configured(env, content)
    size, most = len(encode(found, env.settings.nesting)), env.settings.event_bytes // 2
    if size > most:
        raise TooLarge(f"It has {size:,} bytes; {most:,} are kept.")
    return found


def effect_owner(event: Event) -> str | None:
    """Return the subject of a declared effect's content."""
    try:
        return subject_of(from_wire(event.content.payload), event.content.user, event.stream)
    except EffectRefused:
        user: str | None = event.content.user
        return user or user_of(event.stream)


def revive_effect(env: Env, effect: str, *, approved: bool = False) -> None:
    """Let an effect be tried now, with a fresh count of attempts.

    With `approved`, release one that waits for approval. Approving twice counts once.
    """
    statuses = ("approval",) if approved else ("dead", "deferred", "failed")

    def wanted(row: Row) -> Draft | None:
        status = str(row["status"])
        if status == "pending":
            return None  # It is already waiting for delivery.
        if status not in statuses:
            problem = "It waits for approval: approve or reject it." if status == "approval" else "It is approved."
            raise Refused(f"Effect {effect} is {status}. {problem}")
        facts = EffectRevived(effect=effect, sink=str(row["sink"]), approved=approved)
        return Draft(type="effect.revived", facts=facts)

    _append_decision(env, effect, wanted)


def discard_effect(env: Env, effect: str, reason: str | None, *, only: str | None = None) -> None:
    """Take an effect out of its lane for good. A delivery that is under way may still arrive."""
    if reason is not None and not isinstance(reason, str):
        raise InvalidValue("reason must be a text.")
    content = None if reason is None else SettledContent(reason=reason)

    def wanted(row: Any) -> Draft:
        if only is not None and row["status"] != only:
            raise Refused(f"Effect {effect} is {row['status']} and does not wait for approval. Discard it instead.")
        facts = EffectSettled(effect=effect, sink=row["sink"], outcome="skipped", attempts=row["attempts"])
        # Content about an effect belongs to the effect's own subject.
        event = None if content is None else read_event(env, require_effect_row(env, effect)[0], row["version"])
        owner = None if event is None or event.content is ERASED else effect_owner(event)
        return Draft(type="effect.settled", facts=facts, content=content, subject=owner)

    _append_decision(env, effect, wanted, key=settlement_key(effect))


def _append_decision(env: Env, effect: str, wanted: Callable[[Row], Draft | None], key: str | None = None) -> None:
    stream, _ = require_effect_row(env, effect)

    def decide(states: States) -> Drafts:
        draft = wanted(require_effect_row(env, effect)[1])
        return {} if draft is None else {stream: [draft]}

    try:
        decide_and_append(env, (stream,), decide, key=key, tries=TRIES)
    except KeyReused:
        raise not_waiting_error(effect) from None  # It was settled meanwhile.
