"""`hf.index`, the part inside frames: spend and reserve, attach evidence, begin and end calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client import context as client_context
from holdfast.client.pack import ContextPack
from holdfast.connect import summarizer_for
from holdfast.core.values import plain
from holdfast.flow.compaction import compacting
from holdfast.flow.conversation import conversing
from holdfast.flow.stack import showing, working
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import KEEP, SUMMARY_TOKENS, CompactionConfig, CompactionResult
from holdfast.records.events.frames import HandleContent
from holdfast.records.resume import (
    HandleInfo,
)
from holdfast.records.usage import Usage


class WorkView:
    """Budgets, evidence, results and calls of one tenant's frames."""

    def __init__(self, ports: Ports, acting: Acting) -> None:
        self._ports = ports
        self._acting = acting

    # budgets

    def reserve(self, frame: str, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        working.reserve(self._ports, self._acting, frame, purpose, amount, key)

    def release_reservation(
        self, frame: str, purpose: str, amount: int | None = None, *, key: str | None = None
    ) -> None:
        """Give a reservation back, all of it or a part."""
        working.release(self._ports, self._acting, frame, purpose, amount, key)

    def spend_reserved(self, frame: str, purpose: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record usage that a reservation pays for, as far as it goes."""
        working.spend(self._ports, self._acting, frame, usage, purpose, key)

    def record_usage(self, frame: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record what work used. Never refused for its amount: the work is done."""
        working.spend(self._ports, self._acting, frame, usage, None, key)

    # evidence and results

    def add_handle(
        self,
        frame: str,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str | None = None,
        policy: str | None = None,
        tokens: int | None = None,
        trust: str | None = None,
        call: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """Attach evidence; gives the handle's id. A handle that is there already is changed in place."""
        content = HandleContent(description=description, target=target, body=body, metadata=plain(metadata))
        return working.add_handle(
            self._ports,
            self._acting,
            frame,
            kind,
            content,
            handle=handle,
            priority=priority,
            policy=policy,
            tokens=tokens,
            trust=trust,
            call=call,
            key=key,
        )

    def remove_handle(
        self, frame: str, handle: str | Sequence[str], *, reason: str | None = None, key: str | None = None
    ) -> str | None:
        """Detach evidence; gives the name under which `restore_handles` brings it back."""
        names = [handle] if isinstance(handle, str) else handle
        return working.remove_handles(self._ports, self._acting, frame, names, reason, key)

    def restore_handles(self, frame: str, removal: str, *, key: str | None = None) -> tuple[str, ...]:
        """Attach again what one removal or compaction detached; gives the handles."""
        return working.restore_handles(self._ports, self._acting, frame, removal, key)

    def compact_context(
        self,
        frame: str,
        target_budget: int,
        strategy: str = "priority",
        *,
        keep: int = KEEP,
        summarizer: Summarizer | Callable[..., str] | None = None,
        max_tokens: int = SUMMARY_TOKENS,
        timeout: float | None = None,
        store: bool | str = False,
        strict: bool = False,
        key: str | None = None,
    ) -> CompactionResult:
        """Make the context of a frame fit a budget: detach its evidence, or let a summary stand for what was said.

        `priority`, `policy_trim` and strategies of your own choose among its evidence, which `restore_handles` brings
        back. The others keep the newest `keep` rounds of its conversation. What is critical stays.
        """
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, timeout=timeout, store=store)
        chosen = self._summarizer(summarizer)
        return compacting.compact_context(
            self._ports, self._acting, frame, target_budget, config, chosen, strict=strict, key=key
        )

    def _summarizer(self, given: Any) -> Summarizer:
        tokenizer = conversing.models(self._ports).tokenizer()
        return summarizer_for(given if given is not None else self._ports.summarizer, tokenizer.count)

    def handles(self, frame: str) -> list[HandleInfo]:
        """A frame's handles in order, with what they point to; detached ones are marked."""
        return showing.handles(self._ports, self._acting, frame)

    def add_result(self, frame: str, kind: str, ref: str, *, summary: str | None = None, key: str | None = None) -> int:
        """Point to something the frame produced; gives its position."""
        return working.add_result(self._ports, self._acting, frame, kind, ref, summary, key)

    # calls

    def begin_model_call(
        self,
        frame: str,
        pack: ContextPack | None = None,
        *,
        model: str | None = None,
        request: Any = None,
        if_interrupted: str = "retry",
        key: str | None = None,
    ) -> str:
        """Journal that a model is about to be called, and with which pack; gives the call's id.

        Refused when nothing is left to spend. With a key, a second call gives the first's id, whatever was said since:
        show the model `pack_at(call)` then.
        """
        if pack is not None:
            return client_context.begin_call(
                self._ports,
                self._acting,
                pack,
                frame=frame,
                model=model,
                request=plain(request),
                if_interrupted=if_interrupted,
                key=key,
            )
        return working.begin_model(
            self._ports,
            self._acting,
            frame,
            model=model,
            request=plain(request),
            if_interrupted=if_interrupted,
            key=key,
        )

    def end_model_call(
        self,
        frame: str,
        call: str,
        *,
        usage: Usage | int = 0,
        finish: str | None = None,
        response: Any = None,
        provider_id: str | None = None,
        error: str | None = None,
        retryable: bool = False,
        doubtful: Usage | None = None,
    ) -> None:
        """Journal what a model answered, or with `error` that it failed. What it used is recorded either way."""
        working.end_model(
            self._ports,
            self._acting,
            frame,
            call,
            usage=usage,
            finish=finish,
            response=plain(response),
            provider_id=provider_id,
            error=error,
            retryable=retryable,
            doubtful=doubtful,
        )

    def begin_tool_call(
        self,
        frame: str,
        name: str,
        *,
        arguments: Any = None,
        if_interrupted: str = "ask",
        provider_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """Journal that a tool is about to be called; gives the call's id, its idempotency key."""
        return working.begin_tool(
            self._ports,
            self._acting,
            frame,
            name,
            arguments=plain(arguments),
            if_interrupted=if_interrupted,
            provider_id=provider_id,
            key=key,
        )

    def end_tool_call(
        self,
        frame: str,
        call: str,
        *,
        value: Any = None,
        error: str | None = None,
        interrupted: bool = False,
        tokens: int | None = None,
    ) -> None:
        """Journal what a tool returned, or with `error` that it failed."""
        working.end_tool(
            self._ports,
            self._acting,
            frame,
            call,
            value=plain(value),
            error=error,
            interrupted=interrupted,
            tokens=tokens,
        )
