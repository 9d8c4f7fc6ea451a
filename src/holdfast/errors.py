"""Every error holdfast raises, grouped by what the caller can do about it.

    HoldfastError
    ├── Refused             fix the call; nothing was written
    │   ├── InvalidValue        a value that cannot be stored (also a ValueError)
    │   ├── TooLarge            over one of the size limits
    │   ├── NotFound            no such stream, event, artifact or file
    │   ├── StreamClosed        the stream was ended for good
    │   ├── NotAJournal         the path holds something else
    │   └── NewerSchema         written by a later release
    ├── Conflict            another writer won; reload and try again
    │   ├── VersionConflict     the stream has moved on
    │   ├── KeyReused           this key already stands for something else
    │   └── StaleEpoch          someone else owns the stream now
    ├── Unavailable         retry later; nothing was written
    │   ├── Busy                another process holds the write lock
    │   ├── StorageFull         the disk or the quota is full
    │   ├── ReadOnly            the file or folder cannot be written
    │   └── Closed              this client was closed
    ├── OutcomeUnknown      it may or may not be stored; retry with the same key
    ├── Unsupported         this backend does not declare the capability
    ├── Corrupt             stop, run `holdfast verify`
    └── EffectFailed        a model or tool failed; the failure is journaled too

The docstring of an error is its default message and says what to do. No driver
exception crosses a port: backends translate before they raise.
"""

from __future__ import annotations

import inspect


class HoldfastError(Exception):
    """holdfast could not do this."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class Refused(HoldfastError):
    """The call was refused and nothing was written. Correct it and call again."""


class InvalidValue(Refused, ValueError):
    """A value cannot be stored as given. Pass plain JSON data and valid ids."""


class TooLarge(Refused):
    """Something is over a size limit. Make it smaller, store it as an artifact, or raise the limit."""


class NotFound(Refused):
    """There is no such thing in this journal. Check the id, the scope and the tenant."""


class StreamClosed(Refused):
    """This stream was closed for good and takes no more events. Use a new one."""


class NotAJournal(Refused):
    """This path does not hold a holdfast journal. Give the path of a journal, or of a new file."""


class NewerSchema(Refused):
    """This journal was written by a later release of holdfast. Upgrade holdfast to open it."""


class Conflict(HoldfastError):
    """Another writer was first and nothing was written. Reload and try again."""


class VersionConflict(Conflict):
    """The stream is not at the expected version. Reload it and decide again."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        self.stream, self.expected, self.actual = stream, expected, actual
        super().__init__(
            f"{stream} is at version {actual}, not {expected}: another writer was first. "
            "Reload it and decide again; nothing was written."
        )


class KeyReused(Conflict):
    """This key was already used for something else. Use a new key for a new operation."""


class StaleEpoch(Conflict):
    """Another owner has taken this stream over. Stop writing to it and resume from the journal."""

    def __init__(self, stream: str, held: int, current: int) -> None:
        self.stream, self.held, self.current = stream, held, current
        super().__init__(
            f"{stream} is owned under epoch {current}, this writer holds {held}: another owner took "
            "over. Stop and resume from the journal; nothing was written."
        )


class Unavailable(HoldfastError):
    """The journal cannot do this now and nothing was written. Try again later."""


class Busy(Unavailable):
    """Another process kept the write lock too long. Try again, or find the process that holds it."""


class StorageFull(Unavailable):
    """The disk is full and nothing was written. Free space; reading still works, writing will resume."""


class ReadOnly(Unavailable):
    """The journal cannot be written here. Check the permissions of the file and of its folder."""


class Closed(Unavailable):
    """This client is closed. Open a new one."""


class OutcomeUnknown(HoldfastError):
    """The commit may or may not have reached the disk. Call again with the same key to find out."""


class Unsupported(HoldfastError):
    """This backend does not offer that. See its declared capabilities."""


class Corrupt(HoldfastError):
    """Stored data is damaged. Stop writing, run `holdfast verify`, and restore from a backup."""


class EffectFailed(HoldfastError):
    """A model or tool failed. The failure is in the journal; see its event for details."""
