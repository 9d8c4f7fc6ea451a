"""Every test hears Ctrl-C, however the suite was started, and keeps its files in memory where there is room."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
ROOM_FOR_A_RUN = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Set up the process before the first test, and with it every worker and every process that a test starts."""
    _hear_ctrl_c()
    _keep_files_in_memory()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect ten thousand tests without looking for garbage among them: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _keep_what_stays()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Find what a file of tests forgot, while it is known which one."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _keep_what_stays()


def _keep_what_stays() -> None:
    """Keep modules and caches out of every later garbage collection; many tests ask for a full one."""
    gc.collect()
    gc.freeze()


def _keep_files_in_memory() -> None:
    """Spare the suite the waits for the disk.

    A killed process leaves the same bytes behind in memory as on a disk; what a power failure takes away is tested
    with simulated disks. TMPDIR puts the files anywhere else.
    """
    if "TMPDIR" in os.environ or not os.access(SHARED_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(SHARED_MEMORY).free >= ROOM_FOR_A_RUN:
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        tempfile.tempdir = None


def _hear_ctrl_c() -> None:
    """A shell that starts the suite in the background has it ignore SIGINT, and so would every process of a test."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
