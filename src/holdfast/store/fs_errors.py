"""What the operating system says about files, as holdfast's own errors. Each names the file or folder."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import HoldfastError, OutcomeUnknown, ReadOnly, Refused, StorageFull, Unavailable


@contextmanager
def reporting(place: Path) -> Iterator[None]:
    """Errors of the operating system as holdfast's own."""
    try:
        yield
    except OSError as error:
        raise _translated(error, place) from error


def _translated(error: OSError, place: Path) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(
            f"{place} cannot be used ({error.strerror}). Check the permissions of the folder and its files."
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Refused(f"{place} cannot be used ({error.strerror}). Nothing was written.")
    return Unavailable(f"{place} cannot be used ({error.strerror}). Nothing was written; try again later.")


def in_the_way(place: Path, mode: int, wanted: str) -> Refused:
    """Something is where a file or folder of ours should be."""
    what = "a symbolic link, and none is followed" if stat.S_ISLNK(mode) else f"not {wanted}"
    return Refused(f"{place} is {what}. Remove it; nothing was read or written through it.")


def unsettled(error: OSError) -> OutcomeUnknown:
    """A change was made, and is perhaps not on disk."""
    return OutcomeUnknown(
        f"The folder could not be synced ({error.strerror}), so the change may be lost with the power. "
        "Read the key again, and write it again if need be."
    )
