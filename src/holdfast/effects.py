"""Effects as data: what an operator declares, what came of it, and the sinks that deliver it.

    return OperatorOutput("paid", effects=[WriteState("user/42", "order", "paid"), Signal("user/42", "order.paid")])

`hf.effects` runs operators, adds sinks and delivers what is pending. `WebhookSink` delivers over https, and
`verify_webhook` checks such a delivery where it arrives.
"""

from typing import TYPE_CHECKING

from holdfast.core.lazy import lazy_names as _lazy_names
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
__getattr__ = _lazy_names(
    __name__,
    {
        "holdfast.extras.webhook": "WebhookSink verify_webhook",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
