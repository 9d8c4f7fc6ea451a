"""A model over HTTP against a scripted server, with its waits and what it said written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import ModelFailed
from holdfast.model.providers import ADAPTERS
from holdfast.records.messages import Delta, ModelCall, ModelReply
from holdfast.testing.clock import FrozenClock
from tests.model_server import ModelServer

FOREVER = 30
"""More faults than anybody has patience for."""
KINDS = ("openai", "responses", "anthropic")
KEY = "sk-very-secret-0123456789"
CALLS = [{"name": "weather", "arguments": {"city": city}} for city in ("Lyon", "Paris")]
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


class Shown:
    """The least that a pack gives."""

    def to_openai(self) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "hi"}]}

    def to_responses(self) -> dict[str, Any]:
        return {"input": [{"role": "user", "content": "hi"}]}

    def to_anthropic(self) -> dict[str, Any]:
        return self.to_openai()


class Asked:
    """One call of one model against a server, with the time it waited, what it said and what it came to."""

    def __init__(self, kind: str, server: ModelServer, **how: Any) -> None:
        self.clock, self.waits, self.heard = FrozenClock(), [], []
        self.model = ADAPTERS[kind](
            how.pop("name", "m"), base_url=server.url, api_key=KEY, clock=self.clock, sleep=self._sleep, **how
        )
        self.waits: list[float]
        self.heard: list[Delta]

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.sleep(seconds)

    def reply(self, say: Callable[[Delta], None] | None = None, **asked: Any) -> ModelReply:
        asked.setdefault("pack", Shown())

        async def main() -> ModelReply:
            try:
                return await self.model.reply(ModelCall(**asked), say or self.heard.append)
            finally:
                await self.model.close()

        return asyncio.run(main())

    def failure(self, **asked: Any) -> ModelFailed:
        with pytest.raises(ModelFailed) as failed:
            self.reply(**asked)
        assert KEY not in f"{failed.value} {failed.value!r} {self.model!r} {vars(failed.value)}"
        assert failed.value.__cause__ is failed.value.__context__ is None, "the driver's errors hold the request"
        return failed.value

    @property
    def said(self) -> str:
        """What was said and not taken back."""
        kinds = [delta.kind for delta in self.heard]
        last = len(kinds) - kinds[::-1].index("reset") if "reset" in kinds else 0
        return "".join(delta.text for delta in self.heard[last:] if delta.kind == "text")
