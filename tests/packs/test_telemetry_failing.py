"""Telemetry that fails, or is not there, is in nobody's way: neither of a pack nor of a call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from holdfast import connect
from holdfast.errors import InvalidValue, Unsupported
from holdfast.extras import opentelemetry
from holdfast.extras.opentelemetry import OpenTelemetry
from holdfast.flow.journal import telemetry as journal_telemetry
from holdfast.records.packs import AssembledPack
from holdfast.records.usage import Usage

from .tracing_kit import CALL, SECRET, Traced, secret_pack


@pytest.fixture(scope="module")
def packed() -> AssembledPack:
    return secret_pack()


class Raising(SpanProcessor):
    """Fails where it is told to."""

    def __init__(self, at: str) -> None:
        self.at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at == "start":
            raise RuntimeError(SECRET)

    def on_end(self, span: Any) -> None:
        if self.at == "end":
            raise RuntimeError(SECRET)


class RaisingExporter(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError(SECRET)


class Broken:
    """A telemetry of the application's own that fails in one of its methods."""

    def __init__(self, at: str) -> None:
        self.at = at

    def _fail(self, at: str) -> None:
        if self.at == at:
            raise RuntimeError(SECRET)

    @contextmanager
    def span(self, name: str, attributes: Any) -> Iterator[Any]:
        self._fail("enter")
        try:
            yield lambda name, value: self._fail("add")
        except ValueError:
            if self.at != "swallow":
                raise
        self._fail("exit")

    def begin_call(self, call: str, attributes: Any) -> None:
        self._fail("begin")

    def end_call(self, call: str, attributes: Any, error: str | None = None) -> None:
        self._fail("finish")


def broken(kind: str) -> Traced:
    if kind in ("start", "end"):
        provider = TracerProvider()
        provider.add_span_processor(Raising(kind))
        return Traced(OpenTelemetry(provider))
    if kind == "exporter":
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(RaisingExporter()))
        return Traced(OpenTelemetry(provider))
    if kind == "tracer":
        telemetry = OpenTelemetry(TracerProvider())
        telemetry._tracer = None  # type: ignore[assignment]
        return Traced(telemetry)
    return Traced(Broken(kind))


KINDS = ["start", "end", "exporter", "tracer", "enter", "add", "exit", "swallow", "begin", "finish"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Telemetry failed:RuntimeWarning")
def test_telemetry_that_fails_breaks_neither_pack_nor_call(kind: str, packed: AssembledPack) -> None:
    env = broken(kind).env
    done = []
    with journal_telemetry.trace_pack(env) as tell:
        tell(packed)
        done.append("packed")
    with pytest.raises(ValueError, match="of the pack"), journal_telemetry.trace_pack(env):
        raise ValueError("of the pack")
    journal_telemetry.begin_span(env, CALL, model="gpt-5", packed=packed)
    journal_telemetry.end_span(env, CALL, usage=Usage(input=1), error="Timeout")
    journal_telemetry.record_span(env, "holdfast.appended", {"messages": 1})
    assert done == ["packed"]


def test_telemetry_that_fails_is_warned_about_without_its_words() -> None:
    with pytest.warns(RuntimeWarning, match=r"^Telemetry failed: RuntimeError\.$") as caught:
        journal_telemetry.begin_span(broken("begin").env, CALL)
    assert SECRET not in str(caught[0].message)


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_made_an_error_breaks_nothing_either() -> None:
    journal_telemetry.begin_span(broken("begin").env, CALL)


def test_without_telemetry_nothing_is_told(packed: AssembledPack) -> None:
    env = connect.connect("memory:")
    with journal_telemetry.trace_pack(env) as tell:
        tell(packed)
    journal_telemetry.begin_span(env, CALL)
    journal_telemetry.end_span(env, CALL)
    journal_telemetry.record_span(env, "holdfast.appended", {})


# the package


def test_holdfast_does_not_import_opentelemetry() -> None:
    code = "import holdfast, sys; sys.exit(any(n.startswith('opentelemetry') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry, "trace", None)
    with pytest.raises(Unsupported, match=r"pip install 'holdfast\[otel\]'"):
        OpenTelemetry()


@pytest.mark.parametrize("wrong", [{"tracer_provider": "console"}, {"most_open": 0}, {"most_open": "many"}])
def test_what_cannot_trace_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        OpenTelemetry(**wrong)


def test_without_a_provider_it_is_the_applications() -> None:
    journal_telemetry.record_span(Traced(OpenTelemetry()).env, "holdfast.appended", {"messages": 1})


def test_a_guard_that_is_missing_is_noticed(packed: AssembledPack, monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(self: journal_telemetry.SafeSpan) -> journal_telemetry.SafeSpan:
        self._span = self._telemetry.span(self._name, self._attributes)
        self._add = self._span.__enter__()
        return self

    monkeypatch.setattr(journal_telemetry.SafeSpan, "__enter__", bare)
    with pytest.raises(RuntimeError):
        test_telemetry_that_fails_breaks_neither_pack_nor_call("start", packed)
