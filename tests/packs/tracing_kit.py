"""Ports whose spans end in a list, by the real OpenTelemetry SDK, and a pack that is full of a secret."""

from __future__ import annotations

from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast
from holdfast import connect
from holdfast.extras.opentelemetry import OpenTelemetry
from holdfast.model.registry import ModelRegistry
from holdfast.ports import Env, Telemetry
from holdfast.records.packs import AssembledPack

SECRET = "her daughter is allergic to nuts, said Berta"
CALL = "01JAZZ0000000000000000000A"


class Traced:
    """Ports with a telemetry that ends in a list."""

    def __init__(self, telemetry: Any = None, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider = provider
        self.telemetry: Telemetry = telemetry or OpenTelemetry(provider, **options)
        self.env: Env = msgspec.structs.replace(
            connect.connect("memory:"), telemetry=self.telemetry, models=ModelRegistry()
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def attributes(self) -> dict[str, Any]:
        (span,) = self.spans
        return dict(span.attributes or {})


def secret_pack() -> AssembledPack:
    """A real pack in which everything that is text holds the secret."""
    tool = {"name": "find", "description": SECRET, "input_schema": {"type": "object"}}
    with holdfast.open("memory:") as hf:
        chat = hf.session("alice", model="gpt-5-mini", system=SECRET, tools=[tool])
        for _ in range(20):
            chat.append(SECRET)
            chat.append({"role": "assistant", "content": SECRET})
        found = chat.pack(budget=400)._packed
    metadata = msgspec.structs.replace(
        found.metadata,
        omitted=(SECRET, "h2"),
        missing_handles=(SECRET,),
        refused_exclusions=(SECRET,),
        failed={SECRET: SECRET},
        erased=(SECRET,),
    )
    return msgspec.structs.replace(found, metadata=metadata, cached_tokens=found.token_summary.used // 2)


def check_wordless(found: list[ReadableSpan]) -> None:
    """Nothing of the secret, in names, attributes, events, status or links."""
    assert found
    for word in ("daughter", "allergic", "nuts", "Berta"):
        assert not any(word in span.to_json() for span in found), word
