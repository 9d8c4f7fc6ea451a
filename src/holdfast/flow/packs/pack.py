"""Build a pack: the context of one model call, within its token budget. Read-only.

The work follows the budget, not the history: token counts come with the rows, and bodies are read only for
messages that may be shown. The tail that was read is cached, so the next pack reads only what is new.
"""

from __future__ import annotations

import msgspec

from holdfast.core.frames import stack
from holdfast.core.packs.assemble import PackMaterial, assemble_pack
from holdfast.core.packs.fences import make_lazy_mark
from holdfast.core.packs.fit import fit_pack
from holdfast.core.packs.history_tools import HISTORY_TOOL_NAMES
from holdfast.core.packs.inputs import BudgetShares, FitResult, PackLimits, PackSources, RequiredPart
from holdfast.core.packs.rounds import ThreadRounds
from holdfast.core.packs.segments import ItemForms, crumb_segments, marker_segment, note_segments, summary_segment
from holdfast.core.sessions.rounds import UNLIMITED, ConversationRounds, check_bounds
from holdfast.core.sessions.tokens import Framing, count_label, framing_of, message_tokens, system_tokens, tools_tokens
from holdfast.errors import BudgetExhausted, BudgetTooSmall
from holdfast.flow.compaction import summaries
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal import telemetry
from holdfast.flow.packs import briefs, evidence, manifest, recent, visibility
from holdfast.flow.packs.briefs import Brief
from holdfast.flow.packs.recent import ThreadTail
from holdfast.flow.packs.request import PackRequest, check_request
from holdfast.flow.packs.visibility import Visibility
from holdfast.flow.sessions.append import models_port
from holdfast.flow.sessions.read import thread_state
from holdfast.ports import Env, Tokenizer
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.frames import StreamState
from holdfast.records.messages import Message
from holdfast.records.models import ModelInfo
from holdfast.records.packs import AssembledPack, CompactionLevel, ContextPackMetadata, Segment, WindowKey
from holdfast.records.scope import parse_scope

CHARACTERS_PER_TOKEN = 6
"""The most characters of prose per token: a text cut to n characters takes at least n / 6 tokens."""
MIN_MESSAGE_CAP = 200
"""The lower bound of `max_message_tokens`, the cap per message while reading back, so that reading ends."""


def build_pack(env: Env, seen: Visibility, asked: PackRequest) -> AssembledPack:
    """Build the pack of a thread within a budget; the default is the model's window less room for its answer."""
    with telemetry.trace_pack(env) as tell:
        check_request(asked)
        # Gather before taking the snapshot: fetching a web page or embedding a query may take long.
        found = evidence.gather_evidence(env, seen, asked, _evidence_room(seen, asked))
        found = evidence.add_memories(env, seen, asked, found)
        with env.journal.snapshot():
            made = _PackBuilder(env, seen, asked).build(found)
        tell(made)
    return made


def _evidence_room(seen: Visibility, asked: PackRequest) -> int:
    """Return the most tokens that evidence could take."""
    return asked.budget or (0 if seen.frame is None else seen.frame.limits.context_tokens)


class _TokenCounter(msgspec.Struct, frozen=True):
    """The tokenizer, model and framing that count this pack's tokens."""

    tokenizer: Tokenizer
    info: ModelInfo
    framing: Framing
    kept_as: str

    def count(self, message: Message) -> int:
        """Return the tokens of one message, from the stored count if it was made in the same way."""
        if message.tokens is not None and message.tokenizer == self.kept_as:
            return message.tokens
        return message_tokens(message, self.tokenizer.count, self.framing)


class _PackBuilder:
    """The builder of one pack."""

    def __init__(self, env: Env, seen: Visibility, asked: PackRequest) -> None:
        self._env, self._seen, self._asked = env, seen, asked
        self._state = _load_thread_state(env, seen)
        self._counting = self._choose_counter()
        self._mark = make_lazy_mark(lambda: env.journal.secret, env.tenant)
        self._wanted, self._budget, self._limited_by = self._compute_budget()

    def build(self, found: evidence.EvidenceItems) -> AssembledPack:
        """Build the best pack that fits."""
        brief, first = self._load_brief()
        notes = note_segments(brief.notes, self._counting.count)
        fixed = first.estimated_tokens + sum(note.estimated_tokens for note in notes)
        ending = self._load_tail(max(self._budget - fixed, 0))
        crumbs = self._load_crumbs()
        before = manifest.last_pack(self._env, self._seen.thread, self._state, self._window_key(), ending.packed)
        sources = self._build_sources(fixed, crumbs, ending, found, brief)
        fitted = self._fit(sources, before)
        given = PackMaterial(
            system=brief.system,
            tools=brief.tools,
            brief=brief.context,
            brief_segment=first,
            notes=notes,
            crumbs=tuple(crumb for crumb, _ in crumbs),
            standing=ending.summaries,
            messages=0 if self._state.thread is None else self._state.thread.messages,
            follows=next_messages(ending),
            overhead=self._counting.framing.reply,
            budget=self._budget,
            layout=self._asked.layout,
            model=self._counting.info.name or None,
            tokenizer=self._counting.tokenizer.name,
            exact=self._is_exact(),
            window=self._window_key(),
            limited_by=self._limited_by,
            metadata=self._metadata(brief),
            report=found.report,
            count=self._counting.count,
            has_history_tools=_has_history_tools(brief),
            pins=found.pins,
            fresh=ending.fresh,
            kept_as=self._counting.kept_as,
            before=self._previous_manifest(before, ending, brief),
        )
        return assemble_pack(fitted, sources, given)

    def _choose_counter(self) -> _TokenCounter:
        session = None if self._seen.session is None else load_current_state(self._env, self._seen.session).session
        info = models_port(self._env).info(None if session is None else session.model)
        name = self._asked.tokenizer or (None if session is None else session.tokenizer) or info.tokenizer
        tokenizer = models_port(self._env).tokenizer(name)
        framing = framing_of(info.provider, info.name)
        return _TokenCounter(tokenizer, info, framing, count_label(tokenizer.name, framing))

    def _compute_budget(self) -> tuple[int, int, str | None]:
        """Return the requested budget, the allowed budget, and the name of the limit that lowered it, if any."""
        frame, actor = self._seen.frame, self._seen.actor
        asked = self._asked.budget
        if frame is None or actor is None:
            wanted = asked or self._counting.info.input_budget
            return wanted, asked or self._calibrate_budget(), None
        live = load_current_state(self._env, actor).frames
        most = stack.tightest_limits(stack.ancestry(live, frame.id)).context_tokens
        wanted = most if asked is None else asked
        budget, limited_by = (most, "context_tokens") if wanted > most else (wanted, None)
        if asked is None and most == self._counting.info.input_budget:
            # No budget was given, and the frame may use its model's whole window: use the calibrated one.
            budget = self._calibrate_budget()
        available = frame.tokens.available
        if available is not None and available < budget:
            budget, limited_by = available, "available"
        if budget < 1:
            raise BudgetExhausted(
                f"Frame {frame.id} has nothing left to spend, so there is nothing to pack for. End it, or raise its "
                "tokens.",
                left=0,
            )
        return wanted, budget, limited_by

    def _calibrate_budget(self) -> int:
        """Return the model's window in tokens as counted here, corrected by the usage that providers reported."""
        counting = self._counting
        factor = models_port(self._env).calibration(
            counting.info.name, counting.tokenizer.name, tenant=self._env.tenant
        )
        most = counting.info.input_budget
        return most if factor is None else max(int(most / factor), 1)

    def _load_brief(self) -> tuple[Brief, Segment]:
        """Load the brief and its segment, from the cache as long as its scopes have not changed."""
        heads = [self._env.journal.head(self._env.tenant, scope) for scope in self._seen.scopes]
        there = [(scope, head.version) for scope, head in zip(self._seen.scopes, heads, strict=True) if head]
        # A frame's own stream changes all the time without touching briefs: `_has_own_brief` checks it instead.
        versions = [at for at in there if at[0] != self._seen.actor]
        place = (
            self._env.tenant,
            self._seen.actor or self._seen.thread,
            f"{self._asked.role} {self._counting.kept_as}",
        )
        remembered = None if self._has_own_brief() else self._env.recent
        known = None if remembered is None else remembered.get(place)
        if known is not None and known[0] == versions:
            return known[1], known[2]
        brief = briefs.load_brief(
            self._env,
            session=self._seen.session,
            scopes=[scope for scope, _ in there],
            role=self._asked.role,
            frame=self._seen.frame,
        )
        segment = self._brief_segment(brief)
        if remembered is not None and not any(origin.part == "entry" for origin in brief.origins):
            # A brief with entries is not cached: entries may expire without an event.
            remembered.put(place, (versions, brief, segment))
        return brief, segment

    def _has_own_brief(self) -> bool:
        """Return True if the frame's brief holds something that only its own stream provides."""
        frame, actor = self._seen.frame, self._seen.actor
        if frame is None or actor is None:
            return False
        return frame.inputs is not None or briefs.has_briefs(self._env, actor)

    def _brief_segment(self, brief: Brief) -> Segment:
        """Return the segment of the system prompt and tools, which are sent apart from the messages."""
        counting = self._counting
        tokens = system_tokens(brief.system, counting.tokenizer.count, counting.framing)
        tokens += tools_tokens(brief.tools, counting.tokenizer.count, counting.framing)
        return Segment(
            kind="brief",
            id="brief",
            priority="critical",
            trust="operator",
            estimated_tokens=tokens + counting.framing.reply,
            messages=(),
            origins=brief.origins,
        )

    def _load_tail(self, room: int) -> ThreadTail:
        wanted = recent.TailRequest(
            room=room,
            max_messages=self._asked.max_messages,
            kept_as=self._counting.kept_as,
            max_message_tokens=max(self._env.settings.abbreviate_chars // CHARACTERS_PER_TOKEN, MIN_MESSAGE_CAP),
        )
        return recent.read_tail(
            self._env,
            self._seen.thread,
            self._state,
            wanted,
            self._counting.tokenizer,
            self._counting.framing,
            0 if self._seen.frame is None else self._seen.frame.turn or 0,
        )

    def _load_crumbs(self) -> list[visibility.Crumb]:
        # A turn's goal is in its conversation already, and here it would change the start of every pack.
        if self._seen.frame is None or self._seen.frame.turn is not None:
            return []
        return visibility.load_breadcrumbs(self._env, self._seen.frame.id)

    def _window_key(self) -> WindowKey:
        return WindowKey(
            role=self._asked.role,
            layout=self._asked.layout,
            tokenizer=self._counting.tokenizer.name,
            budget=self._wanted,
        )

    def _build_sources(
        self,
        fixed: int,
        crumbs: list[visibility.Crumb],
        ending: ThreadTail,
        found: evidence.EvidenceItems,
        brief: Brief,
    ) -> PackSources:
        count, settings = self._counting.count, self._env.settings
        most = UNLIMITED if self._asked.max_messages is None else self._asked.max_messages
        talk = ConversationRounds(ending.messages, check_bounds(most, self._budget, count), ending.leading)
        all_crumbs, last_crumb = crumb_segments(crumbs, self._mark, count, settings.breadcrumb_tokens)
        messages = 0 if self._state.thread is None else self._state.thread.messages
        hidden = _has_hidden(ending, messages)
        return PackSources(
            fixed=fixed,
            crumbs=all_crumbs,
            last_crumb=last_crumb,
            rounds=ThreadRounds(
                talk,
                self._seen.thread,
                settings.abbreviate_chars,
                ending.question_places,
                recent.contiguous_start(ending),
            ),
            complete=ending.complete or not hidden,
            hidden=ending.complete and hidden,
            summaries=tuple(summary_segment(one, self._seen.thread, self._mark, count) for one in ending.summaries),
            items=found.items,
            forms=ItemForms(self._mark, count),
            marker=marker_segment(messages, count, tools=_has_history_tools(brief)),
            fixed_parts=lambda: self._brief_parts(brief, fixed),
        )

    def _brief_parts(self, brief: Brief, fixed: int) -> tuple[RequiredPart, ...]:
        """Return the brief's tokens by part, for the error that says what to shorten."""
        counting = self._counting
        tools = tools_tokens(brief.tools, counting.tokenizer.count, counting.framing)
        fewer = (
            "leave out expand and search_history (history=False)" if _has_history_tools(brief) else "offer fewer tools"
        )
        return RequiredPart("the brief", fixed - tools, "shorten the brief"), RequiredPart(
            "tools", tools, fewer, len(brief.tools)
        )

    def _fit(self, sources: PackSources, before: ContextPacked | None) -> FitResult:
        settings = self._env.settings
        start = None
        if before is not None and before.window_stream is not None and before.window_start is not None:
            start = (before.window_stream, before.window_start)
        limits = PackLimits(
            budget=self._budget,
            max_messages=UNLIMITED if self._asked.max_messages is None else self._asked.max_messages,
            floor=CompactionLevel(self._asked.min_compaction),
            stickiness=self._asked.stickiness,
            before=start,
            shares=BudgetShares(
                conversation=settings.conversation_percent,
                included=settings.included_percent,
                memory=settings.memory_percent,
            ),
        )
        try:
            return fit_pack(sources, limits)
        except BudgetTooSmall as error:
            if self._limited_by != "available" or error.unit != "tokens":
                raise
            raise BudgetExhausted(
                f"Only {self._budget} tokens are left to spend, and a pack needs {error.required}. End the frame, or "
                "raise its tokens.",
                left=self._budget,
            ) from None

    def _previous_manifest(
        self, before: ContextPacked | None, ending: ThreadTail, brief: Brief
    ) -> tuple[PackedPiece, ...]:
        """Return the last pack's pieces; none if content shown here was erased since, as it now renders differently."""
        if before is None:
            return ()
        gone = bool(brief.erased) or True in [message.erased for message in ending.messages]
        return () if gone and manifest.has_erasure_since(self._env, before.at_seq) else before.manifest

    def _is_exact(self) -> bool:
        tokenizer, info = self._counting.tokenizer, self._counting.info
        return tokenizer.exact and info.known and tokenizer.name == info.tokenizer

    def _metadata(self, brief: Brief) -> ContextPackMetadata:
        return ContextPackMetadata(
            pack_id=None,
            frame_id=None if self._seen.frame is None else self._seen.frame.id,
            scope=self._seen.thread,
            role=self._asked.role,
            created_at=self._env.clock.now_ms(),
            log_seq=self._env.journal.position(),
            level=CompactionLevel.NONE,
            layout=self._asked.layout,
            erased=brief.erased,
        )


def _load_thread_state(env: Env, seen: Visibility) -> StreamState:
    """Return the thread's state. A frame's private thread may not exist yet; a missing session is refused."""
    state = load_current_state(env, seen.thread)
    if state.thread is None and (seen.frame is None or visibility.is_thread(parse_scope(seen.thread))):
        thread_state(env, seen.thread)
    return state


def _has_hidden(ending: ThreadTail, messages: int) -> bool:
    """Return True if the thread has messages that are neither loaded nor covered by a loaded summary."""
    if not ending.summaries:
        return messages > len(ending.places)
    at_hand = sum(1 for place in ending.places if not summaries.is_covered(place, ending.summaries))
    return messages > at_hand + sum(summary.messages for summary in ending.summaries)


def _has_history_tools(brief: Brief) -> bool:
    return frozenset(HISTORY_TOOL_NAMES).issubset(tool.name for tool in brief.tools)


def next_messages(ending: ThreadTail) -> dict[tuple[str, int], tuple[str, int]]:
    """Map each loaded message to the one directly after it in the thread."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    begun, previous = False, ("", 0)
    for place in ending.places:
        at = (place.stream, place.version)
        if not begun and at != ending.since:
            continue
        if begun and previous[0] == at[0] and place.row["before"] is None:
            found[previous] = at
        begun, previous = True, at
    return found
