"""Work done in a forked child, and what it said: the one helper for tests that need another process at once.

Tests that need many processes that know nothing of this one start `PROCESSES`.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable

PROCESSES = multiprocessing.get_context("forkserver")
"""Begun by a process of its own that has imported holdfast once, and has opened nothing."""
PROCESSES.set_forkserver_preload(["holdfast.client.holdfast", "holdfast.connect", "holdfast.journal.sqlite"])


def in_child(work: Callable[[], object]) -> str:
    """What the work gives, as text, or the error that it raises."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forking beside threads, which is the point here.
        child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def as_nobody(work: Callable[[], object]) -> str:
    """The same by somebody without rights: root may write anywhere."""

    def without_rights() -> object:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return work()

    return in_child(without_rights)
