"""The rules of effects: validity, sink, subject and retries. Pure.

Effects are checked as a whole before anything is written: one invalid effect refuses all that were declared with it.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, cast

import msgspec
from msgspec.structs import asdict, replace

from holdfast import errors
from holdfast.core import entries as rules
from holdfast.core.journal.codec import encode
from holdfast.core.lazy import convert, decoder
from holdfast.core.values import to_plain
from holdfast.records import effects
from holdfast.records.batches import Row
from holdfast.records.effects import BUILT_IN_SINKS, EFFECT_KINDS, AnyEffect, Effect, StateEffect
from holdfast.records.ids import check_id, ulid_bytes
from holdfast.records.scope import Address, Scope

SIGNAL_TYPE: Final = "app.signal."

_SINK_BY_TYPE: Final[dict[type[Effect], str]] = {
    effects.Signal: effects.SIGNAL_SINK,
    effects.PushFrame: effects.FRAME_SINK,
    effects.Delegate: effects.FRAME_SINK,
    effects.Handoff: effects.FRAME_SINK,
    effects.RequestApproval: effects.QUESTION_SINK,
}
_DATA_FIELDS: Final = frozenset({"value", "data", "payload", "inputs", "metadata", "arguments"})
_CONTENT_FIELDS: Final = _DATA_FIELDS | {"goal", "summary", "question", "options", "recommended"}
"""Fields that hold an effect's content, rather than its identity and target."""
_SCOPE_FIELDS: Final = frozenset({"scope", "target_scope"})
_KIND_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

FIRST_DELAY_MS: Final = 1_000
MAX_DELAY_MS: Final = 300_000
JITTER: Final = 0.2
MAX_REQUESTED_DELAY_MS: Final = 24 * 3_600_000
"""The longest delay that a sink can ask for; longer requests are cut to this."""


def kind_of(effect: Effect) -> str:
    """Return an effect's kind: one of holdfast's, or the name that the caller gave."""
    return effect.kind if isinstance(effect, effects.Custom) else str(effect.__struct_config__.tag)


def sink_of(effect: Effect) -> str:
    """Return the name of the sink that an effect goes to."""
    if isinstance(effect, StateEffect):
        return effects.STATE_SINK if effect.store is None else effect.store
    return effect.sink if isinstance(effect, effects.Custom) else _SINK_BY_TYPE[type(effect)]


def is_immediate(effect: Effect) -> bool:
    """Return True if the effect is applied in the append that declares it, rather than by a sink."""
    return isinstance(effect, StateEffect) and effect.store is None and not effect.needs_approval


def subject_of(effect: Effect, user: str | None, declared_in: str) -> str | None:
    """Return the user whose content an effect is: of state kept about a user, that user; else the acting user.

    Without an acting user: the user a signal is addressed to, or the user in whose scope the effect was declared.
    """
    if isinstance(effect, StateEffect):
        places = (getattr(effect, "scope", None), getattr(effect, "target_scope", None))
        return user_of(*places) or user or user_of(declared_in)
    return user or user_of(effect.to if isinstance(effect, effects.Signal) else None, declared_in)


def user_of(*places: Address | None) -> str | None:
    """Return the user of the first of these scopes that belongs to a user."""
    users = (Scope.of(place).get("user") for place in places if place is not None)
    return next((user for user in users if user is not None), None)


def check_effect(effect: object) -> AnyEffect:
    """Check that an effect can be declared, and return it with its scopes as text."""
    if not isinstance(effect, Effect) or type(effect) not in EFFECT_KINDS.values():
        raise errors.InvalidValue(
            f"An operator declares effects such as WriteState or Custom, not {type(effect).__name__}. "
            "Nothing was written."
        )
    places = {name: getattr(effect, name) for name in _SCOPE_FIELDS if hasattr(effect, name)}
    if isinstance(effect, effects.Signal):
        places["to"] = effect.to
    texts = {name: Scope.of(place).text for name, place in places.items() if place is not None}
    given: Any = replace(effect, **texts)
    kind: type[Effect] = type(effect)
    try:
        decoder(kind).decode(encode(_with_plain_data(given)))
    except msgspec.ValidationError as error:
        words = str(error).replace("`", "").replace("$.", "")
        raise errors.InvalidValue(f"{kind.__name__} cannot be declared: {words}. Nothing was written.") from None
    # The rules that its type does not express.
    if isinstance(given, StateEffect):
        _check_state(given)
    elif isinstance(given, effects.Signal | effects.Custom):
        _check_kind(given)
    else:
        _check_frame_effect(given)
    return cast(AnyEffect, given)


def _with_plain_data(effect: Effect) -> Effect:
    """Return the effect with values of the caller's own types as plain data."""
    data = {name: to_plain(value) for name, value in asdict(effect).items() if name in _DATA_FIELDS}
    return replace(effect, **data)


def _check_kind(effect: effects.Signal | effects.Custom) -> None:
    if not _KIND_PATTERN.fullmatch(effect.kind):
        raise errors.InvalidValue(f"kind must be up to 64 letters, digits, '.', '_' or '-', not {effect.kind!r:.80}.")
    if isinstance(effect, effects.Custom):
        if effect.kind in EFFECT_KINDS:
            raise errors.InvalidValue(f"{effect.kind!r} is a kind of holdfast's own. Call yours something else.")
        check_sink(effect.sink)


def check_sink(name: object) -> str:
    """Check the name of a caller's sink."""
    sink = check_id(name, "sink")
    if sink in BUILT_IN_SINKS:
        raise errors.InvalidValue(f"The sink {sink!r} is built in. Choose another name.")
    return sink


def _check_state(effect: Any) -> None:
    if effect.store is not None:
        check_sink(effect.store)
    rules.check_not_reserved(*(getattr(effect, name, "") for name in ("key", "source", "target")))
    if isinstance(effect, effects.WriteState):
        rules.check_entry_key(effect.key)
        rules.check_options(options_of(effect), Scope.of(effect.scope))
        rules.check_choice("reducer", effect.reducer)
        rules.check_expected(effect.expected_version)
        if effect.lifetime == "transient":
            raise errors.InvalidValue(
                "What an effect writes is journaled, and a transient entry is not. Use another lifetime."
            )
    elif isinstance(effect, effects.DeleteState):
        rules.check_entry_key(effect.key)
        rules.check_expected(effect.expected_version)
    else:
        for key in (effect.source, effect.target):
            rules.check_entry_key(key)
        check_id(effect.kind, "kind")


def options_of(effect: effects.WriteState) -> rules.EntryOptions:
    """Return the entry options of a write."""
    return rules.EntryOptions(**{name: getattr(effect, name) for name in rules.EntryOptions.__struct_fields__})


def _check_frame_effect(effect: Any) -> None:
    for name in ("actor", "to", "session"):
        given = getattr(effect, name, None)
        if given is not None:
            check_id(given, name)
    for name in ("parent", "frame"):
        given = getattr(effect, name, None)
        if given is not None:
            ulid_bytes(given)
    asks = isinstance(effect, effects.RequestApproval)
    if asks and effect.recommended is not None and effect.recommended not in (effect.options or ()):
        raise errors.InvalidValue(f"{effect.recommended!r:.80} is recommended and not among the options.")
    if not (effect.question if asks else effect.goal).strip():
        raise errors.InvalidValue("A frame's goal, or a question, must be a text that says what it is about.")


def to_wire(effect: Effect) -> dict[str, Any]:
    """Return an effect as the plain data that is stored."""
    return cast(dict[str, Any], msgspec.to_builtins(_with_plain_data(effect)))


def from_wire(payload: Any) -> AnyEffect:
    """Return the effect that was stored as this data."""
    try:
        return cast(AnyEffect, convert(payload, AnyEffect))
    except msgspec.ValidationError as error:
        raise errors.EffectRefused(f"What is stored is no effect that this release knows: {error}.") from None


def payload_of(effect: Effect) -> Any:
    """Return the payload for a caller's sink."""
    if isinstance(effect, effects.Custom):
        return effect.payload
    return {name: value for name, value in to_wire(effect).items() if name not in ("type", "needs_approval")}


def effect_from_payload(kind: str, payload: Any) -> AnyEffect:
    """Return the effect that a sink was given, for holdfast's own kinds."""
    return from_wire({**payload, "type": kind} if isinstance(payload, dict) and kind in EFFECT_KINDS else None)


def is_same_target(one: Effect, other: Effect) -> bool:
    """Return True if two effects do the same to the same target, regardless of their content."""
    places = [
        {name: value for name, value in asdict(effect).items() if name not in _CONTENT_FIELDS}
        for effect in (one, other)
    ]
    return type(one) is type(other) and places[0] == places[1]


def compute_retry_delay(attempts: int, chance: float, asked: object = None) -> int:
    """Return the delay after so many attempts: doubled each time, with jitter, at least what the sink asked for."""
    steady = min(FIRST_DELAY_MS << min(attempts - 1, 30), MAX_DELAY_MS)
    delay = round(steady * (1 - JITTER + 2 * JITTER * chance))
    if isinstance(asked, int | float) and not isinstance(asked, bool) and math.isfinite(asked):
        delay = max(delay, min(round(asked * 1000), MAX_REQUESTED_DELAY_MS))
    return delay


def is_permanent_error(error: BaseException) -> bool:
    """Return True if a sink that raised this would raise it again. A frame's suspension or open work will pass."""
    if isinstance(error, errors.FrameSuspended | errors.HasLiveChildren | errors.HasOpenCalls):
        return False
    if isinstance(error, errors.ParentNotActive) and error.before == "suspended":
        return False
    return isinstance(error, errors.Refused | errors.EffectRefused | errors.Unsupported)


def is_retry_due(row: Row, now: int) -> bool:
    """Return True if an effect may be tried now. A clock set back delays no effect beyond the longest delay."""
    at = row["retry_at"]
    return not isinstance(at, int) or at <= now or at - now > MAX_REQUESTED_DELAY_MS
