"""A turn's model calls: their context, their count and their usage.

A turn whose cost cannot be known calls no model again. A reply that reports no usage is counted from its pack and its
text, and marked as estimated.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.packs.manifest import compute_digest
from holdfast.core.sessions.tokens import framing_of, message_tokens
from holdfast.flow.compaction import rules
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.packs import manifest, pack, visibility
from holdfast.flow.packs.manifest import PackOutdated
from holdfast.flow.packs.visibility import PackRequest
from holdfast.flow.sessions.append import is_reported, thread_tokenizer
from holdfast.flow.sessions.read import session_stream, thread_state
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import TurnModelCall
from holdfast.flow.turns.limits import (
    ModelCallTally,
    ModelLimits,
    UnknownCost,
    check_cost,
    check_tally,
    read_model_outcomes,
    tally_model_calls,
)
from holdfast.flow.turns.turns import TurnView
from holdfast.ports import Env
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack
from holdfast.records.usage import Usage


def read_model_name(env: Env, place: TurnPlace) -> str:
    """Return the model of a turn's conversation; empty if none was named."""
    session = load_current_state(env, session_stream(place.thread)).session
    return "" if session is None or session.model is None else session.model


class ModelCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a model call that is about to begin."""

    model: str
    newest: int
    """The version of the newest message that the pack was made from."""
    packed: AssembledPack


def has_unanswered_message(view: TurnView) -> bool:
    """Return True if a message came while the last reply was written: no provider accepts that as a question."""
    last = view.tail[-1] if view.tail else None
    return last is not None and last.role == "assistant" and not last.tool_calls


class TurnModelCalls:
    """The model calls of one turn."""

    def __init__(self, env: Env, place: TurnPlace, limits: ModelLimits, *, new: bool) -> None:
        self._env, self._place, self._limits = env, place, limits
        self._checked: int | None = None
        """The version up to which the costs in the journal were checked."""
        self._tally = ModelCallTally(0, 0) if new else None
        """Calls so far; None until they are counted."""

    def can_build_now(self, view: TurnView) -> bool:
        """Return True if a model call is next and its context can be read from the journal alone.

        No snapshot of the journal is held while a web page, an embedder or telemetry is awaited.
        """
        if view.step.next != "model" or view.step.call is not None or view.unwanted or has_unanswered_message(view):
            return False
        fetched = view.frame.handles or rules.recall_settings(self._env, self._place.thread)[0]
        return not fetched and self._env.telemetry is None

    def begin(self, context: ModelCallContext | None) -> TurnModelCall:
        """Journal the beginning of a call; if messages arrive meanwhile, include them and try again."""
        env, context, compacted = self._env, context or self.build_context(), False
        while True:
            packed = context.packed
            fired = rules.fire_rules(env, packed.metadata.scope, packed=packed)
            if not compacted and any(one.made for one in fired):
                # This call is shown what its rule compacted.
                context, compacted = self.build_context(), True
                continue
            digest = compute_digest(env.journal.secret, env.tenant, packed)
            how: Any = {"frame": self._place.frame, "model": context.model or None, "newest": context.newest}
            try:
                call = manifest.begin_call(env, packed, digest, **how)
            except PackOutdated:
                context = self.build_context()
                continue
            self.update_tally(made=1)
            return TurnModelCall(call, packed, context.model, digest)

    def build_context(self) -> ModelCallContext:
        """Build the context of one more call, from everything said by now."""
        self.check_loops()
        env, place = self._env, self._place
        newest = thread_state(env, place.thread).newest
        seen = visibility.frame_visibility(env, place.frame, turn=place.started)
        packed = pack.build_pack(env, seen, PackRequest(budget=self._limits.budget))
        return ModelCallContext(model=read_model_name(env, place), newest=newest, packed=packed)

    def check_loops(self) -> None:
        """Refuse one more call if the limit is reached. The journal is read once; later calls are counted here."""
        if self._tally is None:
            self._tally = tally_model_calls(self._env, self._place)
        check_tally(self._tally, self._limits.loops)

    def check_cost(self) -> None:
        """Refuse another model call if the cost so far is unknown or at its limit; costs are read once."""
        why = self._find_unknown_cost()
        if why is not None:
            raise UnknownCost(why)
        check_cost(turns.read_turn_usage(self._env, self._place), self._limits.cost)

    def _find_unknown_cost(self) -> str | None:
        """Find a call whose cost is unknown, and return the reason."""
        for event in read_model_outcomes(self._env, self._place, after=self._checked):
            own = event.facts.frame == self._place.frame
            why = self._explain_unknown_cost(event.type, event.facts.usage) if own else None
            if why is not None:
                return why
            self._checked = event.version
        return None

    def _explain_unknown_cost(self, type: str, usage: Usage) -> str | None:
        if usage.cost is not None:
            return None
        model = usage.model or read_model_name(self._env, self._place) or "its model"
        if is_reported(usage) and not usage.estimated:
            advice = "give one with holdfast.open(prices=…) or holdfast.models.register_price."
            return f"no price is known for {model}; {advice}"
        if type == "model.failed":  # Most failed calls are not billed, and report nothing.
            return None
        return f"{model} did not report what it used, so what it costs is not known; give its replies a usage."

    def update_tally(self, *, made: int = 0, in_a_row: int | None = None) -> None:
        """Update the tally. No-op until it is loaded: the first load reads these calls from the journal."""
        if self._tally is not None:
            row = self._tally.in_a_row if in_a_row is None else in_a_row
            self._tally = ModelCallTally(max(self._tally.made + made, 0), row)

    def note_failure(self) -> None:
        """Note a failure that costs no loop: an unavailable model is given up eventually."""
        self.update_tally(made=-1, in_a_row=1 + (0 if self._tally is None else self._tally.in_a_row))


def reply_usage(env: Env, thread: str, shown: int, message: Message, usage: Usage | int | None) -> Usage | int:
    """Return the usage that the caller or the reply reports; else an estimate from the pack and the reply."""
    said = message.usage if usage is None else usage
    if isinstance(said, int) or (said is not None and (is_reported(said) or said.cost is not None)):
        return said
    tokenizer, info = thread_tokenizer(env, thread)
    return Usage.estimate(shown, message_tokens(message, tokenizer.count, framing_of(info.provider, info.name)))
