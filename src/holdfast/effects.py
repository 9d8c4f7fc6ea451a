"""Effects as data: what an operator declares, what came of it, and the sinks that deliver it.

    return OperatorOutput("paid", effects=[WriteState("user/42", "order", "paid"), Signal("user/42", "order.paid")])

`hf.effects` runs operators, adds sinks and delivers what is pending. `WebhookSink` delivers over https, and
`verify_webhook` checks such a delivery where it arrives.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from holdfast.records.effects import (
    Custom,
    DeclaredEffect,
    Delegate,
    DeleteState,
    DispatchReport,
    EffectInfo,
    EffectOutcome,
    Handoff,
    LinkState,
    OperatorOutput,
    OperatorResult,
    PushFrame,
    RequestApproval,
    Signal,
    UnlinkState,
    WriteState,
)

if TYPE_CHECKING:
    from holdfast.extras.webhook import WebhookSink, verify_webhook

__all__ = [
    "Custom",
    "DeclaredEffect",
    "Delegate",
    "DeleteState",
    "DispatchReport",
    "EffectInfo",
    "EffectOutcome",
    "Handoff",
    "LinkState",
    "OperatorOutput",
    "OperatorResult",
    "PushFrame",
    "RequestApproval",
    "Signal",
    "UnlinkState",
    "WebhookSink",
    "WriteState",
    "verify_webhook",
]

# Imported on first use: slow to import.
_LAZY_IMPORTS = {
    "WebhookSink": "holdfast.extras.webhook",
    "verify_webhook": "holdfast.extras.webhook",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(_import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'holdfast.effects' has no attribute {name!r}")
