"""Interruptions by a signal: raised at chosen points of the main thread, or real ones in a process of its own.

CPython raises KeyboardInterrupt where a Python function begins and where a call returns, and nowhere inside `with
lock:`. A profiler sees the same points, so an interruption can be placed at each of them.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import apsw

import holdfast

PATIENCE = 30
POINTS = ("call", "c_return")
Operation = Callable[[holdfast.Holdfast, int], object]


class Interrupter:
    """Raises KeyboardInterrupt at a point, counted from 1, and once more where some function begins after it.

    An interpreter forgets a profiler that raises, so the second interruption is left to a tracer.
    """

    def __init__(self, point: int = 0, second: int = 0) -> None:
        self._point, self._second = point, second
        self.seen = 0

    def __enter__(self) -> Self:
        # Interrupted destructors are reported to a hook, and that of a test runner must not be interrupted.
        self._hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        sys.unraisablehook = self._hook

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in POINTS and frame.f_code.co_filename != __file__:
            self.seen += 1
            if self.seen == self._point:
                raise KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.seen >= self._point > 0 < self._second and frame.f_code.co_filename != __file__:
            self._second -= 1
            if not self._second:
                raise KeyboardInterrupt


def check_nothing_is_held(hf: holdfast.Holdfast, path: Path | None, number: int, operation: Operation) -> None:
    """Write from another connection, and do the same from another thread, without any patience for locks."""
    if path is not None:
        outsider = apsw.Connection(str(path))
        try:
            outsider.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            raise AssertionError("another process waits for a lock") from None
        finally:
            outsider.close()
    done: list[object] = []
    other = threading.Thread(target=lambda: done.append(operation(hf, number)), daemon=True)
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive(), "another thread waits for a lock"
    assert done, "another thread cannot work"


def count_points(hf: holdfast.Holdfast, operation: Operation) -> int:
    """Return the number of points at which a signal could interrupt an operation."""
    with Interrupter() as counted:
        operation(hf, -1)
    return counted.seen


def interrupt(hf: holdfast.Holdfast, path: Path | None, operation: Operation, point: int, second: int) -> None:
    """Interrupt an operation, and check while the exception is handled: nothing may be released by its end only."""
    number = point * 1_000 + second
    try:
        with Interrupter(point, second):
            operation(hf, number)
    except (KeyboardInterrupt, holdfast.HoldfastError):
        check_nothing_is_held(hf, path, number, operation)
        operation(hf, number)


# Real signals: `python -m tests.edges.interrupts PATH SIGNALS SEED`


class _Interrupted:
    """The work of a main thread that is interrupted again and again, beside busy threads."""

    def __init__(self, path: str, signals: int, seed: int) -> None:
        self._hf = holdfast.open(path)
        self._signals = signals
        self._random = random.Random(seed)
        self._tried = {"main": 0, "other": 0}
        self._sent = 0
        self._ready = self._stopping = False

    def run(self) -> None:
        self._append("main")  # What is imported at first use is: the interpreter's own locks do not survive a signal.
        for work in (self._compute, self._write, self._watch, self._send):
            threading.Thread(target=work, daemon=True).start()
        while not self._stopping:
            try:
                self._work()
            except (KeyboardInterrupt, holdfast.HoldfastError):
                self._tried["main"] += 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._append("main")
        assert self._hf.journal.verify().findings == ()
        print(f"ok {self._sent} {self._tried['main']} {self._tried['other']}", flush=True)
        os._exit(0)

    def _work(self) -> None:
        self._ready = True
        while not self._stopping:
            try:
                self._append("main")
            except (KeyboardInterrupt, holdfast.HoldfastError):
                self._append("main")  # While the interruption is handled.

    def _append(self, name: str) -> None:
        self._hf.journal.append(name, "app.noted", {"n": self._tried[name]})
        self._hf.session(name).append("a text")
        self._hf.state("user/u").write("key", self._tried[name])
        self._tried[name] += 1

    def _write(self) -> None:
        while True:
            try:
                self._append("other")
            except holdfast.HoldfastError:
                continue  # Its commit was led by the thread that was interrupted.

    def _compute(self) -> None:
        while True:
            sum(range(100))

    def _send(self) -> None:
        while not self._ready:
            time.sleep(0.001)
        while self._sent < self._signals:
            time.sleep(self._random.uniform(0, 0.006))
            os.kill(os.getpid(), signal.SIGINT)
            self._sent += 1
        self._stopping = True

    def _watch(self) -> None:
        """End the process if a thread makes no progress."""
        while True:
            before = dict(self._tried), self._sent
            time.sleep(PATIENCE)
            if any(self._tried[name] == before[0][name] for name in self._tried):
                print(f"stuck after {self._sent} signals", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setswitchinterval(0.0005)
    _Interrupted(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).run()
