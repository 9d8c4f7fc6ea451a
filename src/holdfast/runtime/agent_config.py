"""The configuration of an agent. Invalid settings are refused when it is created, not at its first send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.client.options import AgentOptions, refuse_unknown
from holdfast.connect import make_model
from holdfast.core.frames.budgets import check_limits, to_nano_usd
from holdfast.core.numbers import is_number
from holdfast.errors import InvalidValue
from holdfast.flow.turns.limits import LOOPS, check_bounds
from holdfast.records.frames import Limits
from holdfast.records.ids import check_id
from holdfast.runtime.reply import ReplyOutput
from holdfast.runtime.tools.sources import ToolSource, check_tools
from holdfast.runtime.tools.tool import AnyTool


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an agent."""

    name: str
    model: Any
    system: str | None = None
    tools: tuple[AnyTool | ToolSource, ...] = ()
    output: ReplyOutput
    history: bool = True
    limits: Limits | None = None
    tokens: int | None = None
    budget: int | None = None
    budget_usd: float | None = None
    loops: int = LOOPS
    options: Mapping[str, Any] = {}


def build_agent_config(name: str, *, model: Any, output: Any, options: AgentOptions) -> AgentConfig:
    """Check an agent's settings and return its configuration."""
    refuse_unknown(options, AgentOptions, "agent")
    if isinstance(model, str):
        make_model(model)  # It raises for a name of an unknown provider.
    elif isinstance(model, type) or not callable(getattr(model, "reply", None)):
        raise InvalidValue("model must be a name such as openai:gpt-5-mini, or a model with a method reply.")
    system, history, tokens = options.get("system"), options.get("history", True), options.get("tokens")
    limits, budget_usd, in_request = options.get("limits"), options.get("budget_usd"), options.get("options")
    if system is not None and not isinstance(system, str):
        raise InvalidValue(f"system must be text, not {type(system).__name__}.")
    if not isinstance(history, bool):
        raise InvalidValue(f"history is whether the agent may read its own past: True or False, not {history!r:.40}.")
    if tokens is not None and not is_number(tokens, least=0):
        raise InvalidValue(f"tokens must be a whole number, 0 or more, not {tokens!r:.40}.")
    check_bounds(options.get("budget"), options.get("loops", LOOPS))
    if budget_usd is not None:
        to_nano_usd(budget_usd, "budget_usd")
    if in_request is not None and not isinstance(in_request, Mapping):
        raise InvalidValue("options must be a mapping of what goes into every request, such as {'temperature': 0}.")
    made: dict[str, Any] = {
        **options,
        "name": check_id(name, "name"),
        "tools": check_tools(options.get("tools", ())),
        "output": ReplyOutput(output),
        "limits": None if limits is None else check_limits(limits),
        "options": dict(in_request or {}),
    }
    return AgentConfig(model=model, **made)
