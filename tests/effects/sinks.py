"""Sinks for tests: they note what they are given, know what they were given before, and fail when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.effects import Custom, DeclaredEffect, OperatorOutput


class Noting:
    """Takes every effect and notes it; `failing` says which it cannot take."""

    def __init__(self, failing: Callable[[DeclaredEffect], Exception | None] | None = None) -> None:
        self.asked: list[DeclaredEffect] = []
        self.taken: list[DeclaredEffect] = []
        self.failing = failing

    def deliver(self, effect: DeclaredEffect) -> Any:
        self.asked.append(effect)
        error = None if self.failing is None else self.failing(effect)
        if error is not None:
            raise error
        if effect.id not in {one.id for one in self.taken}:
            self.taken.append(effect)
        return {"taken": len(self.taken)}

    @property
    def payloads(self) -> list[Any]:
        """What was taken, in order."""
        return [effect.payload for effect in self.taken]


def declare(hf: holdfast.Holdfast, *effects: Any, scope: str = "operator/test", key: str | None = None) -> list[str]:
    """Have an operator declare effects; gives their ids."""
    done = hf.effects.operate(
        lambda given, view: OperatorOutput(None, list(effects)), scope=scope, key=key, name="test"
    )
    return [one.effect for one in done.outcomes]


def notes(hf: holdfast.Holdfast, *payloads: Any, sink: str = "crm", scope: str = "operator/test") -> list[str]:
    """Have an operator declare one effect for each payload."""
    return declare(hf, *(Custom("note", payload, sink) for payload in payloads), scope=scope)
