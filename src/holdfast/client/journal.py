"""`hf.journal`: the journal as its users see it. Each method calls a flow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.connect import file_path, url_text
from holdfast.core.journal.codec import decode_event
from holdfast.errors import InvalidValue, NotFound, Refused, Unavailable
from holdfast.flow.journal import artifacts, read, transfer
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.journal.verify import verify
from holdfast.flow.packs.rebuild import rebuild_pack
from holdfast.ports import Env
from holdfast.ports.capabilities import BACKUP, MAINTENANCE, require
from holdfast.records.batches import AppendResult, HeadQuery
from holdfast.records.catalogue import APP_PREFIX
from holdfast.records.events.envelope import AppContent, AppFacts, Draft, Erased, Event
from holdfast.records.ids import MAX_KEY_BYTES, check_id
from holdfast.records.reports import Erasure, EventQuery, Progress, VerificationReport
from holdfast.records.scope import Address, Scope
from holdfast.system import write_new_file

StrPath = str | os.PathLike[str]


class JournalView:
    """The journal of one tenant: read, follow, check, copy and erase."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def events(
        self,
        scope: Address | None = None,
        *,
        after: int = 0,
        until: int | None = None,
        types: Sequence[str] = (),
        backwards: bool = False,
    ) -> Iterator[Event]:
        """Iterate over one stream by version, or the tenant's events by seq, bounded by `after` and `until`."""
        query = make_query(self.env, scope, after, until, types, backwards)
        return read.iterate_events(self.env, query)

    def subscribe(
        self,
        scope: Address | None = None,
        *,
        after: int | None = None,
        types: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """Iterate over events of any process as they happen, from now on or after a known version or cursor."""
        start = newest_cursor(self, scope) if after is None else after
        query = make_query(self.env, scope, start, None, types, False)
        return read.subscribe(self.env, query, timeout=timeout)

    def append(
        self,
        scope: Address,
        type: str,
        content: Any = None,
        *,
        facts: dict[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
        subject: str | None = None,
        files: Sequence[bytes] = (),
    ) -> AppendResult:
        """Append an application's own event. Its type begins with `app.`; with a key it happens once."""
        if not isinstance(type, str) or not type.startswith(APP_PREFIX) or not type[len(APP_PREFIX) :]:
            raise InvalidValue(
                f"An application's own events begin with 'app.', such as 'app.noted'; {type!r} does not."
            )
        check_id(type, "type")
        if facts is not None and not isinstance(facts, dict):
            raise InvalidValue(f"facts must be an object with names, not {facts.__class__.__name__}.")
        if not isinstance(files, list | tuple):
            raise InvalidValue("files must be a list of bytes.")
        placed = [artifacts.prepare_artifact(self.env, body) for body in files]
        draft = Draft(
            type=type,
            facts=AppFacts(data=facts or {}, artifacts=tuple(artifact.name.hex() for artifact in placed)),
            content=None if content is None else AppContent(data=content),
            subject=subject,
        )
        decided = StreamWrite(stream=Scope.of(scope).text, events=(draft,), expected=expected, key=key)
        return append_events(self.env, [decided], placed)

    def events_by_key(self, scope: Address, key: str) -> list[Event]:
        """Return the events that were written to a stream under a key; an empty list if there are none."""
        check_id(key, "key", limit=2 * MAX_KEY_BYTES)  # Also holdfast's own, which may end in a caller's.
        stored = self.env.journal.events_by_key(self.env.tenant, Scope.of(scope).text, key)
        return [decode_event(event) for event in stored]

    def version(self, scope: Address) -> int:
        """Return the version of a stream; 0 if it has no events."""
        head = self.env.journal.head(self.env.tenant, Scope.of(scope).text)
        return 0 if head is None else head.version

    def streams(self) -> Iterator[str]:
        """Iterate over the names of this tenant's streams, in order."""
        after = ""
        while heads := self.env.journal.heads(self.env.tenant, HeadQuery(after=after, limit=read.PAGE)):
            yield from (head.stream for head in heads)
            after = read.advance_cursor(after, heads[-1].stream)

    def position(self) -> int:
        """Return the cursor of the newest event in the journal."""
        return self.env.journal.position()

    def artifact(self, name: str) -> bytes | Erased:
        """Return an artifact's bytes by the name that events give it; ERASED if it was erased."""
        return artifacts.read_artifact(self.env, name)

    def collect(self) -> int:
        """Remove artifacts that nothing has referred to for a day; return how many."""
        self._check_whole()
        return artifacts.collect_artifacts(self.env)

    def verify(self, *, packs: bool = False, progress: Progress | None = None) -> VerificationReport:
        """Check every chain, version, row, reference and artifact of the whole journal.

        With `packs`, also check that every pack given to a model can be rebuilt exactly: that takes longer.
        """
        self._check_whole()
        return verify(self.env, progress, rebuild_pack=rebuild_pack if packs else None)

    def rebuild(self, *, since: int = 0, progress: Progress | None = None) -> int:
        """Rebuild every projection from the events, while others go on; return how many were applied.

        With `since`, a position, rebuild only what belongs to streams with events after it, from all of their events.
        """
        self._check_whole()
        read.check_cursor("since", since)
        try:
            return require(self.env.journal, MAINTENANCE).rebuild(progress, since)
        finally:
            self.env.states.clear()

    def erase(self, subject: str) -> Erasure:
        """Remove all content that belongs to a subject, from every byte on disk. It cannot be undone."""
        return artifacts.erase_subject(self.env, subject)

    def backup(self, target: StrPath, *, progress: Progress | None = None) -> None:
        """Write a consistent copy to a new path, while others write. `holdfast.restore` opens it as a journal."""
        self._check_whole()
        require(self.env.journal, BACKUP).backup(file_path(url_text(target)), progress)

    def export(self, target: StrPath, *, until: int | None = None, progress: Progress | None = None) -> int:
        """Export the whole journal as JSON lines to a new path; return the number of lines."""
        self._check_whole()
        path = file_path(url_text(target))
        if path.exists():
            raise Refused(f"{path} exists already. Give the path of a new file.")
        until = None if until is None else read.check_cursor("until", until)
        return write_new_file(path, transfer.export_lines(self.env, until, progress))

    def import_(self, source: StrPath, *, progress: Progress | None = None) -> int:
        """Import an export into this journal, which must be empty; return the number of events. All or nothing."""
        self._check_whole()
        path = file_path(url_text(source))
        if not path.is_file():
            raise NotFound(f"There is no export at {path}.")
        with _open_export(path) as lines:
            size = path.stat().st_size
            secret, items = transfer.parse_lines(_report_progress(lines, size, progress))
            return require(self.env.journal, MAINTENANCE).restore(secret, transfer.check_chains(items))

    def tenants(self) -> list[str]:
        """Return the names of all tenants in the journal."""
        self._check_whole()
        return self.env.journal.tenants()

    def _check_whole(self) -> None:
        """Refuse an operation that would show one tenant the others."""
        if not self.env.whole:
            raise Refused("This is about the journal as a whole. Call it on the client itself, not on a tenant's view.")


def newest_cursor(view: JournalView, scope: Address | None) -> int:
    """Return where a subscription from now on begins: the stream's version, or the journal's position."""
    return view.position() if scope is None else view.version(scope)


def make_query(
    env: Env, scope: Address | None, after: int, until: int | None, types: Sequence[str], backwards: bool
) -> EventQuery:
    """Make a query of one stream, or of all streams of the tenant."""
    stream = None if scope is None else Scope.of(scope).text
    return read.build_query(env, stream, after=after, until=until, types=types, backwards=backwards)


def _report_progress(lines: Iterable[bytes], size: int, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    for number, line in enumerate(lines):
        done += len(line)
        if progress is not None and number % read.PAGE == 0:
            progress(done, size)
        yield line


def _open_export(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
