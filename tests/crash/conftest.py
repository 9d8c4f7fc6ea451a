"""A folder that is quick to write to: these tests make thousands of files and look after syncing themselves."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path(tmp_path):
    """A new folder, in memory where the system offers that."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="holdfast-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
