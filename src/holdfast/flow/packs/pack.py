"""Build a pack: the context of one model call, within its token budget. Read-only.

The work follows the budget, not the history: token counts come with the rows, and bodies are read only for
messages that may be shown. The tail that was read is cached, so the next pack reads only what is new.
"""

from __future__ import annotations

import msgspec

from holdfast.core.frames import stack
from holdfast.core.packs import segments
from holdfast.core.packs.assemble import CountedBrief, EvidenceItems, PackMaterial, assemble_pack
from holdfast.core.packs.briefs import Brief
from holdfast.core.packs.fences import FenceMarks
from holdfast.core.packs.fit import fit_pack
from holdfast.core.packs.history_tools import HISTORY_TOOL_NAMES
from holdfast.core.packs.window import FitResult, PackLimits, PackSources, RequiredPart
from holdfast.core.sessions.rounds import UNLIMITED, WindowBounds
from holdfast.core.sessions.tokens import count_label, framing_of
from holdfast.errors import BudgetExhausted, BudgetTooSmall
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal import telemetry
from holdfast.flow.packs import briefs, evidence, hints, manifest, recent, visibility
from holdfast.flow.packs.hints import TailHints
from holdfast.flow.packs.older import WindowSummaries
from holdfast.flow.packs.recent import ThreadTail, TokenCounter
from holdfast.flow.packs.visibility import PackRequest, Visibility, check_request
from holdfast.flow.sessions.read import thread_state
from holdfast.ports import Env
from holdfast.records.events.calls import ContextPacked
from holdfast.records.frames import StreamState
from holdfast.records.packs import AssembledPack, CompactionLevel, ContextPackMetadata, WindowKey
from holdfast.records.scope import Scope
from holdfast.records.sessions import SessionState

CHARACTERS_PER_TOKEN = 6
"""The most characters of prose per token: a text cut to n characters takes at least n / 6 tokens."""
MIN_MESSAGE_CAP = 200
"""The lower bound of `max_message_tokens`, the cap per message while reading back, so that reading ends."""


def build_pack(env: Env, seen: Visibility, asked: PackRequest) -> AssembledPack:
    """Build the pack of a thread within a budget; the default is the model's window less room for its answer."""
    if env.telemetry is None:
        return _build_pack(env, seen, asked)
    with telemetry.trace_pack(env) as tell:
        made = _build_pack(env, seen, asked)
        tell(made)
    return made


def _build_pack(env: Env, seen: Visibility, asked: PackRequest) -> AssembledPack:
    check_request(asked)
    room = asked.budget or (0 if seen.frame is None else seen.frame.limits.context_tokens)
    # Gather before taking the snapshot: fetching a web page or embedding a query may take long.
    found = evidence.gather_evidence(env, seen, asked, room)
    with env.journal.snapshot():
        state = load_current_state(env, seen.thread)
        if state.thread is None and seen.frame is None:
            thread_state(env, seen.thread)  # Refuses a missing session.
        elif state.thread is None and seen.frame is not None and seen.thread != Scope.frame(seen.frame.id).text:
            # Until somebody opens the frame's session, its packs are those of its own, empty thread.
            seen = msgspec.structs.replace(seen, thread=Scope.frame(seen.frame.id).text)
            state = load_current_state(env, seen.thread)
        session = None if seen.session is None else load_current_state(env, seen.session).session
        builder = _PackBuilder(env, seen, asked, state, session)
        return builder.build(found, builder.load_brief())


class _PackBuilder:
    """The builder of one pack."""

    def __init__(
        self, env: Env, seen: Visibility, asked: PackRequest, state: StreamState, session: SessionState | None
    ) -> None:
        self._env, self._seen, self._asked, self._state = env, seen, asked, state
        self._mark = FenceMarks(env.journal, env.tenant)
        self._messages = 0 if state.thread is None else state.thread.messages
        self._max_messages = UNLIMITED if asked.max_messages is None else asked.max_messages
        models = env.models
        self._model = models.info(None if session is None else session.model)
        tokenizer = models.tokenizer(
            asked.tokenizer or (None if session is None else session.tokenizer) or self._model.tokenizer
        )
        framing = framing_of(self._model.provider, self._model.name)
        kept_as = count_label(tokenizer.name, framing)
        self._counter = TokenCounter(tokenizer=tokenizer, framing=framing, kept_as=kept_as)
        wanted, self._budget, self._limited_by = self._compute_budget()
        self._window = WindowKey(role=asked.role, layout=asked.layout, tokenizer=tokenizer.name, budget=wanted)

    def _compute_budget(self) -> tuple[int, int, str | None]:
        """Return the requested budget, the allowed budget, and the name of the limit that lowered it, if any."""
        env, model, asked = self._env, self._model, self._asked.budget
        frame, actor = self._seen.frame, self._seen.actor
        most: int = model.input_budget
        if frame is not None and actor is not None:
            live = load_current_state(env, actor).frames
            most = stack.tightest_limits(stack.ancestry(live, frame.id)).context_tokens
        wanted = budget = asked or most
        if asked is None and most == model.input_budget:
            # No budget was given, and the model's whole window may be used, as corrected by what providers reported.
            factor = env.models.calibration(model.name, self._counter.tokenizer.name, tenant=env.tenant)
            budget = most if factor is None else max(int(most / factor), 1)
        if frame is None or actor is None:
            return wanted, budget, None
        budget, limited_by = (most, "context_tokens") if wanted > most else (budget, None)
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

    def load_brief(self) -> CountedBrief:
        """Load the brief, from the cache as long as its scopes have not changed."""
        env, seen = self._env, self._seen
        heads = [(scope, env.journal.head(env.tenant, scope)) for scope in seen.scopes]
        there = [(scope, head.version) for scope, head in heads if head]
        # A frame's own stream changes all the time without touching briefs: `_has_own_brief` checks it instead.
        versions = [at for at in there if at[0] != seen.actor]
        place = (env.tenant, seen.actor or seen.thread, f"{self._asked.role} {self._counter.kept_as}")
        remembered = None if self._has_own_brief() else env.recent
        known: tuple[list[tuple[str, int]], CountedBrief] | None = None if remembered is None else remembered.get(place)
        if known is not None and known[0] == versions:
            return known[1]
        brief = briefs.load_brief(
            env, session=seen.session, scopes=[scope for scope, _ in there], role=self._asked.role, frame=seen.frame
        )
        segment = self._counter.brief_segment(brief)
        notes = segments.note_segments(brief.notes, self._counter.count)
        counted = CountedBrief(
            brief=brief,
            segment=segment,
            notes=notes,
            tokens=sum(one.estimated_tokens for one in (segment, *notes)),
            has_history_tools=frozenset(HISTORY_TOOL_NAMES).issubset(tool.name for tool in brief.tools),
        )
        if remembered is not None and not any(origin.part == "entry" for origin in brief.origins):
            # A brief with entries is not cached: entries may expire without an event.
            remembered.put(place, (versions, counted))
        return counted

    def _has_own_brief(self) -> bool:
        """Return True if the frame's brief holds something that only its own stream provides."""
        frame, actor = self._seen.frame, self._seen.actor
        if frame is None or actor is None:
            return False
        return frame.inputs is not None or visibility.has_briefs(self._env, actor)

    def build(self, found: EvidenceItems, counted: CountedBrief) -> AssembledPack:
        """Build the best pack that fits."""
        env, seen, asked, counter, brief = self._env, self._seen, self._asked, self._counter, counted.brief
        tail = self._read_tail(counted)
        crumbs: list[segments.Crumb] = []
        # A turn's goal is in its conversation already, and here it would change the start of every pack.
        if seen.frame is not None and seen.frame.turn is None:
            crumbs = visibility.load_breadcrumbs(env, seen.frame.id)
        before = manifest.last_pack(env, seen.thread, self._state, self._window, tail.packed)
        older = WindowSummaries(env, seen.thread, tail, before, counter, self._mark)
        hint = hints.find_hints(env, seen.thread, counter.kept_as, tail)
        sources = self._build_sources(counted, crumbs, tail, found, older, hint)
        fitted = self._fit(sources, before)
        standing, made = tail.summaries, None
        if fitted.summaries and fitted.summaries[-1].text in older.found:
            segment, summary, made = older.found[fitted.summaries[-1].text]
            standing = (*standing, summary)
            sources = msgspec.structs.replace(sources, summaries=(*sources.summaries, segment))
        shown = () if before is None else before.manifest
        if before is not None and self._shows_erased(brief, tail) and manifest.has_erasure_since(env, before.at_seq):
            shown = ()  # Content that was erased since is rendered differently now.
        given = PackMaterial(
            counted=counted,
            crumbs=tuple(crumb for crumb, _ in crumbs),
            standing=standing,
            messages=self._messages,
            follows=hint.follows,
            overhead=counter.framing.reply,
            budget=self._budget,
            model=self._model.name or None,
            exact=counter.tokenizer.exact and self._model.known and counter.tokenizer.name == self._model.tokenizer,
            window=self._window,
            limited_by=self._limited_by,
            metadata=ContextPackMetadata(
                pack_id=None,
                frame_id=None if seen.frame is None else seen.frame.id,
                scope=seen.thread,
                role=asked.role,
                created_at=env.clock.now_ms(),
                log_seq=env.journal.position(),
                level=CompactionLevel.NONE,
                layout=asked.layout,
                erased=brief.erased,
            ),
            evidence=found,
            fresh=tail.fresh,
            kept_as=counter.kept_as,
            made=made,
            before=shown,
            hints=hint.kept,
        )
        packed = assemble_pack(fitted, sources, given)
        hint.keep(env, sources.rounds)
        return packed

    def _read_tail(self, counted: CountedBrief) -> ThreadTail:
        env, seen, counter = self._env, self._seen, self._counter
        wanted = recent.TailRequest(
            room=max(self._budget - counted.tokens, 0),
            max_messages=self._asked.max_messages,
            kept_as=counter.kept_as,
            max_message_tokens=max(env.settings.abbreviate_chars // CHARACTERS_PER_TOKEN, MIN_MESSAGE_CAP),
        )
        turn = 0 if seen.frame is None else seen.frame.turn or 0
        return recent.read_tail(env, seen.thread, self._state, wanted, counter, turn)

    def _shows_erased(self, brief: Brief, tail: ThreadTail) -> bool:
        return bool(brief.erased) or True in [message.erased for message in tail.messages]

    def _build_sources(
        self,
        counted: CountedBrief,
        crumbs: list[segments.Crumb],
        tail: ThreadTail,
        found: EvidenceItems,
        older: WindowSummaries,
        hint: TailHints,
    ) -> PackSources:
        count, settings, thread = self._counter.count, self._env.settings, self._seen.thread
        bounds = WindowBounds(messages=self._max_messages, tokens=self._budget, count=count)
        rounds = hint.lay_out(bounds, thread, settings.abbreviate_chars)
        all_crumbs = last_crumb = None
        if crumbs:
            all_crumbs, last_crumb = segments.crumb_segments(crumbs, self._mark, count, settings.breadcrumb_tokens)
        # Messages that are neither loaded nor covered by a loaded summary are hidden.
        known = len(tail.places)
        if tail.summaries:
            # Only what stays in the tail may be covered: reading it ends at the first message that is.
            stays = tail.places[: tail.start()]
            known -= sum(segments.is_covered(*place.key, tail.summaries) for place in stays)
            known += sum(summary.messages for summary in tail.summaries)
        hidden = self._messages > known
        return PackSources(
            fixed=counted.tokens,
            crumbs=all_crumbs,
            last_crumb=last_crumb,
            rounds=rounds,
            runs=hint.runs,
            complete=tail.complete or not hidden,
            hidden=tail.complete and hidden,
            summaries=tuple(segments.summary_segment(one, thread, self._mark, count) for one in tail.summaries),
            items=found.items,
            forms=segments.ItemForms(self._mark, count, settings.abbreviate_chars),
            marker=segments.marker_segment(self._messages, count, tools=counted.has_history_tools),
            summarise=lambda first, room: older.summarise(rounds.messages[first][0], room),
            fixed_parts=lambda: self._brief_parts(counted),
        )

    def _brief_parts(self, counted: CountedBrief) -> tuple[RequiredPart, ...]:
        """Return the brief's tokens by part, for the error that says what to shorten."""
        tools = self._counter.count_tools(counted.brief)
        fewer = "offer fewer tools"
        if counted.has_history_tools:
            fewer = "leave out expand and search_history (history=False)"
        return (
            RequiredPart("the brief", counted.tokens - tools, "shorten the brief"),
            RequiredPart("tools", tools, fewer, len(counted.brief.tools)),
        )

    def _fit(self, sources: PackSources, before: ContextPacked | None) -> FitResult:
        start = None
        if before is not None and before.window_stream is not None and before.window_start is not None:
            start = (before.window_stream, before.window_start)
        limits = PackLimits(
            budget=self._budget,
            max_messages=self._max_messages,
            floor=CompactionLevel(self._asked.min_compaction),
            stickiness=self._asked.stickiness,
            before=start,
            settings=self._env.settings,
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
