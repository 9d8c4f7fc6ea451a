"""What holds for all tests: they hear Ctrl-C however they were started."""

from __future__ import annotations

import signal
import threading

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts the suite in the background has it ignore SIGINT, and so would every process of a test."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
