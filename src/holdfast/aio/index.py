"""`hf.index` for asyncio: the methods of IndexView, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; repeat it with its key to learn the outcome. After a cancelled
`resume_actor`, release the actor with `release_actor`, or repeat the call with the same incarnation.
"""

from __future__ import annotations

from holdfast.aio.callbacks import AnySummarizer, LoopSummarizer, run_with_rules
from holdfast.aio.executor import ThreadPools, make_async, make_pages, run_pack
from holdfast.client.index import IndexView, choose_frame_summarizer
from holdfast.client.state import StoreChoice
from holdfast.model.summarizers import resolve_summarizer as checked
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionResult


class AsyncIndexView:
    """The methods of IndexView, awaited."""

    def __init__(self, view: IndexView, threads: ThreadPools) -> None:
        self._sync = view
        self._threads = threads

    # frames

    push_frame = make_async(IndexView.push_frame)
    update_frame = make_async(IndexView.update_frame)
    pop_frame = make_async(IndexView.pop_frame)
    get_frame = make_async(IndexView.get_frame)
    ancestry = make_async(IndexView.ancestry)
    stack = make_async(IndexView.stack)
    stacks = make_pages(IndexView.stacks)
    top_of_stack = make_async(IndexView.top_of_stack)
    leaves = make_async(IndexView.leaves)

    # packs

    assemble_context_pack = make_async(IndexView.assemble_context_pack, run_pack)
    pack_at = make_async(IndexView.pack_at, run_pack)

    # briefs

    set_brief = make_async(IndexView.set_brief)
    brief = make_async(IndexView.brief)

    # actors

    resume_actor = make_async(IndexView.resume_actor, ThreadPools.run_waiting)
    release_actor = make_async(IndexView.release_actor)
    sweep = make_async(IndexView.sweep, ThreadPools.run_waiting)

    # budgets

    reserve = make_async(IndexView.reserve)
    release_reservation = make_async(IndexView.release_reservation)
    spend_reserved = make_async(IndexView.spend_reserved)
    record_usage = make_async(IndexView.record_usage)

    # evidence and results

    add_handle = make_async(IndexView.add_handle)
    remove_handle = make_async(IndexView.remove_handle)
    restore_handles = make_async(IndexView.restore_handles)

    async def compact_context(
        self,
        frame: str,
        target_budget: int,
        strategy: str = "priority",
        *,
        keep: int = DEFAULT_KEEP_ROUNDS,
        summarizer: AnySummarizer | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        timeout: float | None = None,
        store: StoreChoice = False,
        strict: bool = False,
        key: str | None = None,
    ) -> CompactionResult:
        """See IndexView.compact_context. An async summarizer is awaited here, any other runs in a thread."""

        def work() -> CompactionResult:
            return self._sync.compact_context(
                frame,
                target_budget,
                strategy,
                keep=keep,
                summarizer=LoopSummarizer(checked(choose_frame_summarizer(self._sync.env, summarizer))),
                max_tokens=max_tokens,
                timeout=timeout,
                store=store,
                strict=strict,
                key=key,
            )

        return await run_with_rules(self._threads, work)

    handles = make_async(IndexView.handles)
    add_result = make_async(IndexView.add_result)

    results = make_async(IndexView.results)

    # calls

    begin_model_call = make_async(IndexView.begin_model_call, run_with_rules)
    end_model_call = make_async(IndexView.end_model_call)
    begin_tool_call = make_async(IndexView.begin_tool_call)
    end_tool_call = make_async(IndexView.end_tool_call)

    # questions

    suspend_frame = make_async(IndexView.suspend_frame)
    reissue_token = make_async(IndexView.reissue_token)
    resume_frame = make_async(IndexView.resume_frame)
    question = make_async(IndexView.question)
    answer_to = make_async(IndexView.answer_to)
