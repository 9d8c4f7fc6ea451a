"""OpenTelemetry spans for packs and model calls. Off unless a client is given one; needs `holdfast[otel]`.

    hf = holdfast.open("agent.db", telemetry=OpenTelemetry())

Names and attributes follow OpenTelemetry's conventions for generative AI; all others are `holdfast.…`. No attribute,
event or status contains message content: errors are reported by type, and exceptions are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.numbers import check_number
from holdfast.core.telemetry import ERROR, call_span_name, error_type
from holdfast.errors import InvalidValue, Unsupported
from holdfast.system import ForkLock, Lru
from holdfast.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

try:
    from opentelemetry import trace
except ImportError:  # An optional dependency.
    trace = None  # type: ignore[assignment]

MAX_OPEN_CALLS: Final = 1024
"""The most calls open at once. Beyond that the oldest is dropped, and its span is never reported."""


class OpenTelemetry:
    """A source of spans, with a tracer provider that defaults to the application's.

    A call begins and ends in different operations, perhaps in different threads, so its span is never the current one.
    Its parent is the span that was current when the call began.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, most_open: int = MAX_OPEN_CALLS) -> None:
        if trace is None:
            raise Unsupported("Spans need OpenTelemetry's API. Run: pip install 'holdfast[otel]'")
        if tracer_provider is not None and not hasattr(tracer_provider, "get_tracer"):
            raise InvalidValue(f"tracer_provider must be a TracerProvider, not {type(tracer_provider).__name__}.")
        check_number("most_open", most_open, least=1)
        self._trace = trace
        self._tracer = trace.get_tracer("holdfast", __version__, tracer_provider)
        self._open: Lru[str, Span] = Lru(most_open)
        self._guard = ForkLock()

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Any]) -> Iterator[Callable[[str, Any], None]]:
        """Run a block inside a span; yields a function that sets an attribute of the span."""
        with self._tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span.set_attribute
            except Exception as error:
                self._mark_failed(span, type(error).__name__)
                raise

    def begin_call(self, call: str, attributes: Mapping[str, Any]) -> None:
        """Start the span of a model call. Starting the same call twice has no further effect."""
        with self._guard.lock:
            if self._open.get(call) is not None:
                return
        span = self._tracer.start_span(
            call_span_name(attributes), kind=self._trace.SpanKind.CLIENT, attributes=dict(attributes)
        )
        with self._guard.lock:
            if self._open.get(call) is None:
                self._open.put(call, span)

    def end_call(self, call: str, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """End the span of a call; ignore a call that another process began or that was dropped."""
        with self._guard.lock:
            span = self._open.drop(call)
        if span is None:
            return
        try:
            span.set_attributes(dict(attributes))
            if error is not None:
                self._mark_failed(span, error_type(error))
        finally:
            span.end()

    def _mark_failed(self, span: Span, kind: str) -> None:
        """Mark a span as failed, with the error's type. Its message may hold content, so it is left out."""
        span.set_attribute(ERROR, kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
