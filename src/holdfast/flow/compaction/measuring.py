"""A frame's evidence as something that may go: how large each piece is, who needs it, and whose words it holds."""

from __future__ import annotations

import msgspec

from holdfast.core.compaction.strategies import UNKNOWN_TOKENS, Item, policy_of
from holdfast.core.fencing import lowest
from holdfast.core.telling import event_trust
from holdfast.errors import Corrupt
from holdfast.flow.conversation.conversing import counting
from holdfast.flow.stack.showing import event_at, field, held_event
from holdfast.ports import Acting, Ports
from holdfast.records.frames import PRIORITY_SCORE, Frame
from holdfast.records.messages import Message
from holdfast.records.packs import Segment

_NAMES = {score: name for name, score in PRIORITY_SCORE.items()}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A handle that is attached, and what is known of what it leads to."""

    item: Item
    text: str
    trust: str

    @property
    def segment(self) -> Segment:
        """As a strategy of the caller's own is given it."""
        return Segment(
            kind="evidence",
            id=self.item.id,
            priority=_NAMES.get(self.item.score, "medium"),
            trust=self.trust,
            estimated_tokens=self.item.tokens,
            messages=(Message(role="user", content=self.text, trust=self.trust),),
        )


def attached(ports: Ports, acting: Acting, stream: str, frame: Frame) -> list[Evidence]:
    """The evidence of a live frame, oldest first. A size that nobody noted is measured if its text is in the event."""
    count = counting(ports, acting, stream)[0].count
    found = []
    for handle in sorted(frame.handles.values(), key=lambda one: one.position):
        if handle.removed is not None:
            continue
        own, held = event_at(ports, acting, stream, handle.version), held_event(ports, acting, stream, handle.version)
        if own is None or held is None:
            raise Corrupt(f"The event of handle {handle.id} is missing. Run `holdfast verify`.")
        body = field(held, "body")
        tokens = handle.tokens
        if tokens is None:
            tokens = count(body) if isinstance(body, str) else UNKNOWN_TOKENS
        call = own.facts.call or held.facts.call
        item = Item(
            id=handle.id,
            score=handle.priority,
            position=handle.position,
            tokens=tokens,
            policy=own.facts.policy or policy_of(handle.priority),
            held=call in frame.calls,
            done=call is not None and call not in frame.calls,
        )
        told = [field(held, "description"), body if isinstance(body, str) else field(held, "target")]
        text = "\n".join(one for one in told if isinstance(one, str))
        found.append(Evidence(item=item, text=text, trust=lowest(event_trust(own), event_trust(held))))
    return found
