"""The projection tables as data: names, columns, keys and references. No SQL.

Backends prepend `tenant` to every key, and `stream` to every row. An event changes only rows of its own stream, so a
stream can be verified alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.batches import RowQuery


class Table(msgspec.Struct, frozen=True):
    """One projection table. `key` is unique within a tenant."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    column_names: tuple[str, ...]
    """The key columns, then the others."""
    references: tuple[tuple[str, str], ...] = ()
    """(column, table) pairs: the column, if not null, must be the first key column of a row in that table."""
    lookup_columns: tuple[str, ...] = ()
    """Columns besides the first of the key by which rows can be looked up: each has an index."""
    stream_columns: tuple[str, ...] | None = None
    """Columns by which rows of one stream can be looked up in order of version; None if they are not read so."""
    per_stream: bool = False
    """True if the key is unique only within a stream, not within the tenant."""


_USAGE = """
    input_tokens cached_input_tokens cache_write_tokens output_tokens reasoning_tokens cost unpriced_tokens
    estimated_tokens
"""
USAGE_COLUMNS = tuple(_USAGE.split())
"""The sums of usage that a frame and a thread have."""

_OF_FRAME = (("frame_id", "frames"),)


def _table(name: str, key: str, columns: str, **rest: Any) -> Table:
    """Return a table from the names of its key and of its other columns, each separated by blanks."""
    keys, others = tuple(key.split()), tuple(columns.split())
    return Table(name, keys, others, keys + others, **rest)


# Parents before children: the order in which rows can be inserted.
PROJECTIONS: tuple[Table, ...] = (
    _table(
        "frames",
        "frame_id",
        f"""
        parent_frame_id depth status granted used reserved lent {_USAGE} tool_calls
        max_context_tokens max_tool_calls max_subframe_depth timeout_ms deadline stopped_at created_at completed_at
        pushed_version goal_version version error_version context_hash outer_frame_id outer_stream
        """,
        references=(("parent_frame_id", "frames"),),
        lookup_columns=("parent_frame_id",),
    ),
    _table(
        "frame_handles",
        "frame_id handle_id",
        "handle_type priority position estimated_tokens version removed",
        references=_OF_FRAME,
    ),
    _table("frame_results", "frame_id position", "result_type ref_id version", references=_OF_FRAME),
    _table("frame_reservations", "frame_id purpose", "amount", references=_OF_FRAME),
    _table("frame_calls", "frame_id call_id", "kind name if_interrupted version", references=_OF_FRAME),
    _table("frame_children", "frame_id child_frame_id", "child_stream", references=_OF_FRAME),
    _table(
        "suspended_frames",
        "frame_id",
        """
        question_id kind prior version suspended_at released expires_at on_expiry until token_id within call_id
        answer_version
        """,
        references=_OF_FRAME,
        lookup_columns=("question_id", "token_id"),
    ),
    _table("artifact_refs", "artifact stream_version", "", references=(("artifact", "artifacts"),), per_stream=True),
    _table(
        "sessions",
        "",
        """
        status generation opened_at opened_version model tokenizer tools idle_timeout_ms memory system_version
        title_version metadata_version
        """,
        per_stream=True,
    ),
    _table("session_threads", "thread", "version", per_stream=True),
    _table("session_handovers", "handover_id", "version attempts"),
    _table(
        "threads",
        "",
        f"messages newest newest_at floor edited generation packed private ended fresh shared {_USAGE}",
        per_stream=True,
    ),
    _table(
        "messages",
        "version",
        "position role round before calls tokens tokenizer pinned retracted",
        stream_columns=("pinned",),
        per_stream=True,
    ),
    _table("message_calls", "call_id", "version provider", per_stream=True),
    _table("message_counts", "tokenizer version", "tokens", stream_columns=("tokenizer",), per_stream=True),
    _table(
        "summaries",
        "version",
        "summary_id first last shared tokens tokenizer flushed retired",
        stream_columns=(),
        per_stream=True,
    ),
    _table("state", "key", "version expires_at lifetime", per_stream=True),
    _table("state_history", "key version", "", per_stream=True),
    _table("edges", "source kind target_scope target", "version", per_stream=True),
    _table(
        "effects",
        "effect_id",
        "sink kind status version attempts retry_at settled",
        lookup_columns=("sink",),
        stream_columns=("sink",),
    ),
)

SESSION_TABLES: tuple[str, ...] = ("sessions", "session_threads", "session_handovers")
THREAD_TABLES: tuple[str, ...] = ("threads", "message_calls")
TABLES: dict[str, Table] = {table.name: table for table in PROJECTIONS}


def check_lookup(query: RowQuery) -> Table:
    """Return the table of a query; refuse a query that would have to read the whole table."""
    table = TABLES[query.table]
    known = (*table.key[:1], *table.lookup_columns) if query.stream is None else table.stream_columns
    if known is None or (query.column is not None and query.column not in known):
        raise AssertionError(f"{query.table} cannot be found by {query.column or 'stream'}")
    return table


def stream_kind(stream: str) -> str | None:
    """Return "session" or "thread" for the stream of a session or a thread, which have rows; else None."""
    kinds = stream.split("/")[::2]
    if kinds == ["session"]:
        return "session"
    return "thread" if kinds in (["session", "thread"], ["frame"]) else None
