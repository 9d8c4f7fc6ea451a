"""Leases: ownership of streams, taken by an event and judged by change.

An owner gives signs of life: a counter that grows, or events. A process that wants the stream watches it for the
length of the owner's lease, which the owner wrote when it took it, by its own monotonic clock; timestamps of different
processes are never compared. If nothing changes, it takes the next epoch, and from then on the journal refuses the
earlier owner's writes, however long that owner slept.

Time in which nobody can write is not silence: an owner that waits for the write lock cannot give signs. So in the last
half of the watch the watcher takes the lock for a moment, and starts that half again whenever it does not get it. Half
a lease is longer than an owner takes between two signs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

from holdfast.errors import ActorBusy, Busy, Draining, NotOwner, StaleEpoch
from holdfast.ports import Clock
from holdfast.ports.journal import Journal
from holdfast.records.batches import Head
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import LeaseReleased, LeaseTaken
from holdfast.records.frames import StreamState
from holdfast.system import ProcessName, renew_in_child

POLLS_PER_LEASE = 20
RENEWALS_PER_LEASE = 3
STRIPES = 64
MAX_POLL_SECONDS = 0.05
BACKGROUND_THREADS = 16
"""The most threads of a client for background work. More work waits for one of them."""

TenantStream = tuple[str, str]
SignsOfLife = tuple[int, int, int]
"""A stream's epoch, its version and the counter of its owners' signs of life."""


class _OwnerWatch(msgspec.Struct):
    """An owner's last signs of life, its lease in seconds, since when both stand, and since when the lock is free."""

    signs: SignsOfLife
    lease: float
    since: float
    free_since: float | None = None


class _HeldLease(msgspec.Struct):
    """A lease of this process, used by `count` blocks of code; the last one gives it back."""

    epoch: int
    count: int = 0
    lost: bool = False


class StreamLeases:
    """The leases of one client, shared by its threads and views."""

    def __init__(self, journal: Journal, clock: Clock, lease_ms: int) -> None:
        self._journal = journal
        self._clock = clock
        self._lease = lease_ms / 1000
        self.process = ProcessName()
        """The name of this process, as written into leases."""
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Reset: a child owns nothing of its parent's."""
        self._held: dict[TenantStream, _HeldLease] = {}
        self.claims: dict[TenantStream, int] = {}
        """Streams that `resume_actor` took for good, with their epochs; each counts as one user."""
        self._silent: dict[TenantStream, SignsOfLife] = {}
        """The last signs of owners that were watched and gave no other: only these may be taken over."""
        self._abandoned: set[TenantStream] = set()
        """Streams taken from a holder that had not released them: it may have died at its work."""
        self._seen: dict[TenantStream, _OwnerWatch] = {}
        """Other owners, as far as they were watched: the next watch continues from there."""
        self._mutex = threading.Lock()
        self._taking = [threading.RLock() for _ in range(STRIPES)]
        self.blocks: set[TenantStream] = set()
        """Frames that a block of this process works on: (tenant, frame)."""
        self._queue: dict[tuple[TenantStream, str], Callable[[], object]] = {}
        """Work that waits for a background thread, by block and name."""
        self._workers = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.draining = False

    def epoch(self, tenant: str, stream: str, state: StreamState) -> int:
        """Return the epoch to write under: that of our lease, or the stream's own if it has no owner."""
        held = self._held.get((tenant, stream))
        if held is not None:
            if held.lost:
                raise StaleEpoch(stream, held.epoch, max(state.epoch, held.epoch + 1))
            return held.epoch
        if state.holder is not None and state.holder != self.process.name:
            raise NotOwner(
                f"Another process works on {stream} (under epoch {state.epoch}). Wait until it is done, or take over "
                "with resume_actor(scope, incarnation=…) once it is gone. Nothing was written."
            )
        return state.epoch

    def holds(self, tenant: str, stream: str) -> bool:
        """Return True if this process owns the stream, as far as it knows."""
        held = self._held.get((tenant, stream))
        return held is not None and not held.lost

    def holds_below(self, tenant: str, folder: str, *, but: str) -> bool:
        """Return True if this process owns a stream below a folder of streams, not counting one of them."""
        with self._mutex:
            held = [stream for (owner, stream), lease in self._held.items() if owner == tenant and not lease.lost]
        return any(stream.startswith(f"{folder}/") for stream in held if stream != but)

    def was_abandoned(self, tenant: str, stream: str) -> bool:
        """Return True if the holder before us did not release the stream."""
        return (tenant, stream) in self._abandoned

    def count_users(self) -> int:
        """Return how many blocks and claims use a lease now."""
        with self._mutex:
            return sum(held.count for held in self._held.values())

    def draft_take(self, tenant: str, stream: str, state: StreamState) -> list[Draft]:
        """Return the event that takes the lease; none if it is ours. Call `await_free` before, `add_user` after."""
        if self.holds(tenant, stream):
            return []
        if not self._is_free(state) and not self._is_still_silent(tenant, stream):
            raise _busy_error(stream)  # Another process took it since we looked, or its owner is back.
        if state.holder is None:
            self._abandoned.discard((tenant, stream))
        else:
            self._abandoned.add((tenant, stream))
        facts = LeaseTaken(epoch=state.epoch + 1, owner=self.process.name, lease_ms=round(self._lease * 1000))
        return [Draft(type="lease.taken", facts=facts)]

    def lock(self, tenant: str, stream: str) -> AbstractContextManager[object]:
        """Return the lock to hold from deciding to take or release a lease until that is noted."""
        return self._taking[hash((tenant, stream)) % STRIPES]

    def draft_release(self, tenant: str, stream: str, epoch: int) -> list[Draft]:
        """Return the event that releases a lease; none while other blocks use it, or if the epoch has changed."""
        with self._mutex:
            held = self._held.get((tenant, stream))
            if held is None or held.lost or held.count > 1 or held.epoch != epoch:
                return []
            return [Draft(type="lease.released", facts=LeaseReleased(epoch=held.epoch, owner=self.process.name))]

    def enter_block(self, tenant: str, frame: str) -> bool:
        """Note that a block works on a frame; return False if another one does."""
        with self._mutex:
            if (tenant, frame) in self.blocks:
                return False
            self.blocks.add((tenant, frame))
            return True

    def run_later(self, block: TenantStream, name: str, work: Callable[[], object]) -> None:
        """Queue work for a background thread, in a block of its own. It replaces work of that name that still waits."""
        with self._mutex:
            self._queue[block, name] = work
            if self._workers >= BACKGROUND_THREADS:
                return
            self._workers += 1
        try:
            # A daemon, since the work may hang: a process that ends does not wait for it.
            threading.Thread(target=self._work_off, name="holdfast-background", daemon=True).start()
        except BaseException:
            with self._mutex:
                self._workers -= 1
            raise

    def _work_off(self) -> None:
        while (taken := self._take_work()) is not None:
            block, work = taken
            try:
                work()
            except BaseException:  # noqa: BLE001  # The rest of the queue needs this thread.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                self.blocks.discard(block)

    def _take_work(self) -> tuple[TenantStream, Callable[[], object]] | None:
        """Take the first work whose block is free. A thread at work in a block looks again when it leaves it."""
        with self._mutex:
            for block, name in self._queue if not self.draining else ():
                if block not in self.blocks:
                    self.blocks.add(block)
                    return block, self._queue.pop((block, name))
            self._workers -= 1
            return None

    def add_user(self, tenant: str, stream: str, epoch: int) -> None:
        """Note a lease that was just committed, or one more user of it."""
        with self._mutex:
            held = self._held.get((tenant, stream))
            if held is None or held.lost:
                held = self._held[tenant, stream] = _HeldLease(epoch)
            held.count += 1
            self._silent.pop((tenant, stream), None)
            self._seen.pop((tenant, stream), None)
            if self._thread is None and "shared" in self._journal.capabilities:
                self._thread = threading.Thread(target=self._renew_leases, name="holdfast-leases", daemon=True)
                self._thread.start()

    def remove_user(self, tenant: str, stream: str, epoch: int) -> None:
        """Remove one user of a lease; after the last one, signs of life end."""
        with self._mutex:
            held = self._held.get((tenant, stream))
            if held is not None and held.epoch == epoch:
                held.count -= 1
                if held.count <= 0:
                    del self._held[tenant, stream]
                    self._abandoned.discard((tenant, stream))

    def mark_lost(self, tenant: str, stream: str) -> None:
        """Mark a lease as taken over: nothing more is written under it."""
        held = self._held.get((tenant, stream))
        if held is not None:
            held.lost = True

    # Watching other owners

    def await_free(self, tenant: str, stream: str, state: StreamState) -> None:
        """Wait until the stream is free, ours, or its owner was silent for a lease; raise ActorBusy if it is alive."""
        if self._is_free(state):
            return
        watch: _OwnerWatch | None = None
        while (head := self._journal.head(tenant, stream)) is not None and head.holder is not None:
            signs = self._read_signs(tenant, head)
            if watch is None:
                watch = self._begin_watch(head, signs)
            elif signs != watch.signs:
                raise _busy_error(stream)
            elif self._is_silent(watch):
                self._silent[tenant, stream] = signs
                return
            if self.draining:
                raise Draining
            if self._clock.monotonic() - watch.since > 2 * watch.lease and watch.free_since is None:
                raise Busy
            self._clock.sleep(self._lease / POLLS_PER_LEASE)

    def watch(self, tenant: str, stream: str) -> Iterator[float]:
        """Yield seconds to sleep until the stream is free, ours, or its owner was silent for the length of a lease.

        Each sign of life restarts the watch, so the caller waits for as long as the owner works.
        """
        place = (tenant, stream)
        while True:
            head = self._journal.head(tenant, stream)
            if head is None or head.holder in (None, self.process.name) or self.process.is_gone(head.holder or ""):
                self._seen.pop(place, None)
                return
            signs, watch = self._read_signs(tenant, head), self._seen.get(place)
            if watch is None or signs != watch.signs:
                self._seen[place] = self._begin_watch(head, signs)
            elif self._is_silent(watch):
                self._silent[place] = signs
                return
            yield min(self._lease / POLLS_PER_LEASE, MAX_POLL_SECONDS)

    def seems_free(self, tenant: str, stream: str) -> bool:
        """Return True if the stream could be taken now. Called repeatedly, this watches an owner without waiting."""
        return next(iter(self.watch(tenant, stream)), None) is None

    def _is_silent(self, watch: _OwnerWatch) -> bool:
        """Return True if an owner gave no sign for a lease, though it could have in the last half of it."""
        now = self._clock.monotonic()
        if now - watch.since < watch.lease / 2:
            return False
        if not self._journal.is_writable(round(self._lease * 1000 / POLLS_PER_LEASE)):
            watch.free_since = None
            return False
        if watch.free_since is None:
            watch.free_since = self._clock.monotonic()
        return now - watch.since >= watch.lease and now - watch.free_since >= watch.lease / 2

    def _is_still_silent(self, tenant: str, stream: str) -> bool:
        head, silent = self._journal.head(tenant, stream), self._silent.get((tenant, stream))
        if head is None or silent is None:
            return False
        epoch, _, renewals = self._read_signs(tenant, head)
        return (epoch, renewals) == (silent[0], silent[2])

    def _is_free(self, state: StreamState) -> bool:
        return state.holder is None or state.holder == self.process.name or self.process.is_gone(state.holder)

    def _read_signs(self, tenant: str, head: Head) -> SignsOfLife:
        return head.epoch, head.version, self._journal.renewals(tenant, head.stream)

    def _begin_watch(self, head: Head, signs: SignsOfLife) -> _OwnerWatch:
        # The owner gives signs as often as its own lease asks for. One without a length is judged by ours.
        return _OwnerWatch(signs, head.lease_ms / 1000 or self._lease, self._clock.monotonic())

    # Our own signs of life

    def _renew_leases(self) -> None:
        wake = self._wake
        while not wake.wait(self._lease / RENEWALS_PER_LEASE):
            with self._mutex:
                if not self._held:
                    self._thread = None
                    return
                mine = [(place, held) for place, held in self._held.items() if not held.lost]
            for (tenant, stream), held in mine:
                try:
                    held.lost = held.lost or not self._journal.renew_lease(tenant, stream, held.epoch)
                except Exception:  # noqa: BLE001, S112
                    continue  # The disk is full or busy: the next renewal may get through.

    def close(self) -> None:
        """Stop giving signs of life and starting background work."""
        self._queue.clear()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)


def _busy_error(stream: str) -> ActorBusy:
    return ActorBusy(
        f"Another process works on {stream} and shows signs of life. Try again later, or use another actor or session."
    )
