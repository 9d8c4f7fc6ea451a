"""What a child is given of its parent's evidence. Nothing is copied: each handle names the event that holds it.

So what was erased is erased in the child as well, whoever pushed it, and a body lies in the journal once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.fencing import lowest
from holdfast.errors import InvalidValue, NotFound
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.events.frames import HandleAdded
from holdfast.records.frames import Frame, Handle
from holdfast.records.ids import check_id


def handle_names(given: object) -> tuple[str, ...]:
    """The ids that a caller names, each once."""
    if not isinstance(given, list | tuple):
        raise InvalidValue("inherit must be a list of ids of the parent's handles, as attach gave them.")
    return tuple(dict.fromkeys(check_id(name, "handle") for name in given))


def handed_down(parent: Frame, wanted: Sequence[str]) -> list[Handle]:
    """The parent's handles that a child is to have; refuses those that it has not, or no longer."""
    attached = {name: handle for name, handle in parent.handles.items() if handle.removed is None}
    unknown = [name for name in wanted if name not in attached]
    if unknown:
        raise NotFound(
            f"Frame {parent.id} has no handle {', '.join(unknown)} to pass on. It has: {', '.join(attached) or 'none'}."
        )
    return [attached[name] for name in wanted]


def inherited(child: str, handles: Sequence[Handle], events: Mapping[str, Event]) -> list[Draft]:
    """The events that give a new frame handles of its parent; `events` attached them there, by the handle's id."""
    return [
        Draft(type="frame.handle_added", facts=_passed_on(child, position, events[handle.id]))
        for position, handle in enumerate(handles, 1)
    ]


def _passed_on(child: str, position: int, event: Event) -> HandleAdded:
    facts: HandleAdded = event.facts
    # What was inherited itself is named by where it began, so that nobody has to follow a chain.
    own = facts.source_stream is None
    return replace(
        facts,
        frame=child,
        position=position,
        trust=lowest(facts.trust or event.trust, event.trust) if own else facts.trust,
        source_stream=event.stream if own else facts.source_stream,
        source_version=event.version if own else facts.source_version,
        artifacts=(),
    )
