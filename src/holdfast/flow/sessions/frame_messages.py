"""A frame's own messages: appended only while the frame is live, readable also afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.checks import is_number
from holdfast.errors import InvalidValue
from holdfast.flow.frames.ancestry import frame_thread
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.frames.read import find_frame_stream, load_current_state
from holdfast.flow.sessions import append as session_append
from holdfast.flow.sessions import read
from holdfast.flow.sessions.append import FrameAuthor
from holdfast.ports import Env
from holdfast.records.messages import Message


def append_frame_messages(
    env: Env, frame_id: str, messages: Sequence[Message], *, key: str | None = None, policy: str | None = None
) -> list[Message]:
    """Append messages to a frame's thread, all or none, and return them as stored. The first starts its thread."""
    thread, home = frame_thread(env, frame_id), find_frame_stream(env, frame_id)

    def check() -> None:
        check_live(env, load_current_state(env, home), frame_id)

    author = FrameAuthor(home=home, check=check)
    return session_append.append_to_thread(env, thread, messages, key=key, policy=policy, author=author)[0]


def read_frame_messages(env: Env, frame_id: str, limit: int | None = None) -> list[Message]:
    """Return the newest messages of a frame's thread, oldest first; none if it has no thread of its own."""
    if limit is not None and not is_number(limit, least=0):
        raise InvalidValue(f"limit must be a number of messages, not {limit!r}.")
    thread = frame_thread(env, frame_id)
    private = read.session_stream(thread) == thread
    if private and load_current_state(env, thread).thread is None:
        return []
    return read.read_messages(env, thread, limit=limit)
