"""A frame's own messages: appended only while the frame is live, readable also afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidValue
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.frames.read import current, stream_of
from holdfast.flow.packs.visibility import line_of_frame
from holdfast.flow.sessions import append as session_append
from holdfast.flow.sessions import read
from holdfast.flow.sessions.append import Saying
from holdfast.ports import Acting, Ports
from holdfast.records.messages import Message


def append(
    ports: Ports,
    acting: Acting,
    frame_id: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    pinned: bool = False,
) -> list[Message]:
    """Append messages to a frame's thread, all or none, and return them as stored. The first starts its thread."""
    line, home = line_of_frame(ports, acting, frame_id), stream_of(ports, acting, frame_id)

    def check() -> None:
        check_live(ports, acting, current(ports, acting, home), frame_id)

    saying = Saying(home=home, check=check)
    return session_append.append(ports, acting, line, messages, key=key, pinned=pinned, saying=saying)


def messages(ports: Ports, acting: Acting, frame_id: str, limit: int | None = None) -> list[Message]:
    """Return the newest messages of a frame's thread, oldest first; none if it has no thread of its own."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidValue(f"limit must be a number of messages, not {limit!r}.")
    line = line_of_frame(ports, acting, frame_id)
    private = read.session_of(line) == line
    if private and current(ports, acting, line).line is None:
        return []
    return read.messages(ports, acting, line, limit=limit)
