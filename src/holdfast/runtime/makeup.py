"""What an agent is made of. What could never work is refused when the agent is made, not when somebody waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.client.turn_model import LOOPS, check_bounds
from holdfast.connect import model_for
from holdfast.core.decide.amounts import check_limits, nano_usd
from holdfast.errors import InvalidValue
from holdfast.records.frames import Limits
from holdfast.records.ids import check_id
from holdfast.runtime.output import Output
from holdfast.runtime.tools.sources import ToolLike, ToolSource, given_tools
from holdfast.runtime.tools.tool import AnyTool


class Makeup(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is made of."""

    name: str
    model: Any
    system: str | None = None
    tools: tuple[AnyTool | ToolSource, ...] = ()
    output: Output
    history: bool = True
    limits: Limits | None = None
    tokens: int | None = None
    budget: int | None = None
    budget_usd: float | None = None
    loops: int = LOOPS
    options: Mapping[str, Any] = {}


def makeup(
    name: str,
    *,
    model: Any,
    system: str | None = None,
    tools: Iterable[ToolLike] = (),
    output: Any = None,
    history: bool = True,
    limits: Limits | None = None,
    tokens: int | None = None,
    budget: int | None = None,
    budget_usd: float | None = None,
    loops: int = LOOPS,
    options: Mapping[str, Any] | None = None,
) -> Makeup:
    """An agent's parts, checked."""
    _check_model(model)
    if system is not None and not isinstance(system, str):
        raise InvalidValue(f"system must be text, not {type(system).__name__}.")
    if not isinstance(history, bool):
        raise InvalidValue(f"history is whether the agent may read its own past: True or False, not {history!r:.40}.")
    if tokens is not None and (type(tokens) is not int or tokens < 0):
        raise InvalidValue(f"tokens must be a whole number, 0 or more, not {tokens!r:.40}.")
    check_bounds(budget, loops)
    if budget_usd is not None:
        nano_usd(budget_usd, "budget_usd")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidValue("options must be a mapping of what goes into every request, such as {'temperature': 0}.")
    return Makeup(
        name=check_id(name, "name"),
        model=model,
        system=system,
        tools=given_tools(tools),
        output=Output(output),
        history=history,
        limits=None if limits is None else check_limits(limits),
        tokens=tokens,
        budget=budget,
        budget_usd=budget_usd,
        loops=loops,
        options=dict(options or {}),
    )


def _check_model(model: Any) -> None:
    if isinstance(model, str):
        model_for(model)  # It says what is wrong with a name that nobody speaks for.
    elif isinstance(model, type) or not callable(getattr(model, "reply", None)):
        raise InvalidValue("model must be a name such as openai:gpt-5-mini, or a model with a method reply.")
