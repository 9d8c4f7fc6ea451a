"""What a session's model is shown: its brief, packs and why they are so, and the conversation made shorter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client import context
from holdfast.client.pack import ContextPack
from holdfast.client.tools import MAX_TOKENS, HistoryTools
from holdfast.connect import summarizer_for
from holdfast.flow.compaction import folding, ruling, summing
from holdfast.flow.context import briefs, tracing
from holdfast.flow.conversation import conversing
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import (
    KEEP,
    SUMMARY_TOKENS,
    BudgetGuard,
    CompactionConfig,
    Rule,
    TelemetryRecorder,
)
from holdfast.records.lines import Summary
from holdfast.records.messages import Message
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo, Trace


class SessionShown:
    """What a conversation is shown as, and how it is made shorter. Nothing of it is lost."""

    _ports: Ports
    _acting: Acting
    _line: str
    _own: str

    # the brief

    def brief(self, role: str = MAIN_ROLE) -> BriefContext:
        """What every pack of a role begins with. Each field is the session's own, or what holds everywhere."""
        return briefs.context_of(self._ports, self._acting, self._own, role)

    def set_brief(
        self,
        role: str = MAIN_ROLE,
        *,
        system_prompt: str | None = None,
        invariants: Sequence[str] | None = None,
        working_context: Any = None,
        tools: Sequence[Any] | None = None,
        key: str | None = None,
    ) -> None:
        """The brief of a role in this session, in place of the one that it had. See hf.index.set_brief."""
        briefs.set_brief(
            self._ports,
            self._acting,
            self._own,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    # packs

    def pack(
        self,
        budget: int | None = None,
        *,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """The best that fits a budget, by default the model's window: valid for every provider, and able to say why.

        A read: nothing is journaled. `as_of` makes it from the journal as it was at a cursor.
        """
        asked = context.asked_for(
            budget,
            role=role,
            query=query,
            include=include,
            exclude=exclude,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
        )
        return context.pack_line(self._ports, self._acting, self._line, asked, as_of)

    def pack_at(self, call: str) -> ContextPack:
        """The pack that a model call was given, exactly as it was shown; what was erased since says so.

        Calls of this session: of its threads, and of frames that work for it.
        """
        return context.pack_at(self._ports, self._acting, call, self._own)

    def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> HistoryTools:
        """Tools with which a model reads what its pack left out: `expand` and `search_history`, and their executor."""
        return HistoryTools(self._ports, self._acting, self._line, max_tokens=max_tokens)

    def packs(self, limit: int | None = None) -> list[PackInfo]:
        """The packs that model calls were given, newest first: all, or the newest `limit`. `pack_at` shows one."""
        return tracing.packs(self._ports, self._acting, self._line, limit)

    def why(self, text: str) -> Trace:
        """The way of a fact through the packs: where it was said, which showed it, where it left, and what to do.

        It is looked for by its words, whatever their case and blanks. A read: no later pack is another for it.
        """
        return tracing.why(self._ports, self._acting, self._line, text)

    def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """Journal what a model is about to be shown; gives the call's id, for `pack_at`. The next window stays put."""
        return context.begin_call(self._ports, self._acting, pack, frame=None, line=self._line, key=key)

    # making shorter

    def compact(
        self,
        keep: int = KEEP,
        *,
        strategy: str = "summarise_oldest",
        summarizer: Summarizer | Callable[..., str] | None = None,
        max_tokens: int = SUMMARY_TOKENS,
        whole: bool = False,
        store: bool | str = False,
    ) -> Summary | None:
        """Let a summary stand for all but the newest `keep` rounds; None if there is nothing to summarise.

        Nothing is removed, and messages that arrive meanwhile stay. `strategy` says what becomes of the older ones,
        `whole` replaces earlier summaries as well, `store` writes what is covered to the state, to be found again.
        A summary is cut to `max_tokens`; one that would take as much as what it stands for is SummaryFailed.
        """
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, store=store)
        chosen = self._summarizer(summarizer)
        return folding.fold(self._ports, self._acting, self._line, config, chosen, whole=whole)

    def add_rule(self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str) -> Callable[[], None]:
        """Have this done whenever it is due, in this process: a Rule, a CompactionConfig, or a preset by its name.

        A rule of the same name is replaced, and "none" takes the compaction away. Returns what undoes it. What a rule
        does itself is no occasion for rules, and what must be awaited is for the asyncio client.
        """
        return ruling.add(self._ports, self._acting, self._own, rule, self._summarizer)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that this process has for it."""
        return ruling.rules_of(self._ports, self._acting, self._own)

    def _summarizer(self, given: Any) -> Summarizer:
        tokenizer, _ = conversing.counting(self._ports, self._acting, self._line)
        return summarizer_for(given if given is not None else self._ports.summarizer, tokenizer.count)

    def summaries(self) -> list[Summary]:
        """The summaries that stand for parts of this line, oldest first."""
        return summing.summaries(self._ports, self._acting, self._line)

    def expand(self, summary: Summary | str) -> list[Message]:
        """The messages that a summary stands for, exactly as they were said."""
        id = summary.id if isinstance(summary, Summary) else summary
        return summing.expand(self._ports, self._acting, self._line, id)
