"""Report packs and calls to telemetry. A telemetry failure never fails the work that is reported.

Telemetry is foreign code: a tracer, its processors, its exporter. Its exceptions become warnings, and a warning that
is configured as an error is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self

from holdfast.core.telemetry import (
    PACK_SPAN,
    answer_attributes,
    call_attributes,
    error_type,
    pack_attributes,
    tool_attributes,
)
from holdfast.ports import Env, Telemetry
from holdfast.records.packs import AssembledPack
from holdfast.records.usage import Usage
from holdfast.system import warn_caller


@contextmanager
def trace_pack(env: Env) -> Iterator[Callable[[AssembledPack], None]]:
    """Open a span around building a pack; yield a function that records the finished pack."""
    if env.telemetry is None:
        yield lambda packed: None
        return
    with SafeSpan(env.telemetry, PACK_SPAN, {}) as span:
        yield lambda packed: span.add_attributes(lambda: pack_attributes(packed))


def record_span(env: Env, name: str, attributes: Mapping[str, Any]) -> None:
    """Record a span for something that is already over."""
    if env.telemetry is not None:
        with SafeSpan(env.telemetry, name, attributes):
            pass


def begin_span(
    env: Env,
    call: str,
    *,
    frame: str | None = None,
    conversation: str | None = None,
    model: str | None = None,
    packed: AssembledPack | None = None,
    tool: str | None = None,
    attempt: int = 1,
) -> None:
    """Begin the span of a model's or a tool's call; called once per attempt, after the intent is journaled."""
    if env.telemetry is None:
        return
    with _warn_of_failure():
        if tool is None:
            provider = None if model is None else env.models.info(model).provider
            attributes = call_attributes(
                call=call, frame=frame, model=model, provider=provider, conversation=conversation, packed=packed
            )
        else:
            attributes = tool_attributes(call=call, frame=frame, conversation=conversation, name=tool, attempt=attempt)
        env.telemetry.begin_call(call, attributes)


def end_span(
    env: Env, call: str, *, usage: Usage | None = None, finish: str | None = None, error: str | None = None
) -> None:
    """End a call's span, with a model's usage or the kind of an error."""
    if env.telemetry is None:
        return
    with _warn_of_failure():
        attributes = answer_attributes(usage or Usage(), finish)
        env.telemetry.end_call(call, attributes, None if error is None else error_type(error))


class SafeSpan:
    """A span whose own failures become warnings; exceptions of the work inside pass through."""

    __slots__ = ("_add", "_attributes", "_name", "_span", "_telemetry")

    def __init__(self, telemetry: Telemetry, name: str, attributes: Mapping[str, Any]) -> None:
        self._telemetry, self._name, self._attributes = telemetry, name, attributes
        self._span: AbstractContextManager[Callable[[str, Any], None]] | None = None
        self._add: Callable[[str, Any], None] | None = None

    def __enter__(self) -> Self:
        with _warn_of_failure():
            span = self._telemetry.span(self._name, self._attributes)
            self._add = span.__enter__()
            self._span = span
        return self

    def add_attributes(self, attributes: Callable[[], Mapping[str, Any]]) -> None:
        """Add attributes to the span."""
        if self._span is None or self._add is None:
            return
        with _warn_of_failure():
            for name, value in attributes().items():
                self._add(name, value)

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        with _warn_of_failure(raised):
            self._span.__exit__(kind, raised, where)


@contextmanager
def _warn_of_failure(raised: BaseException | None = None) -> Iterator[None]:
    """Turn an exception of telemetry into a warning; drop `raised`, which the work itself raised."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  it is not our code
        if error is not raised:
            # Only the kind of error: its message may quote user content.
            warn_caller(f"Telemetry failed: {type(error).__name__}.")
