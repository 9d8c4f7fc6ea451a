"""A read-only view of a store for `StateReader`: no attribute in it exposes a method that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from holdfast.flow.state.store import Storage
from holdfast.flow.state.transients import TransientEntries
from holdfast.ports import Store
from holdfast.records.entries import Revision, StoredEntry

_STORE = ("get", "page", "search", "edges", "history")
_TRANSIENTS = ("get", "at", "live_entries")


class ReadOnlyStore:
    """The read methods of a store, wrapped so that no attribute exposes the store itself."""

    __slots__ = ("_capabilities", *_STORE)

    history: Callable[[str, str, int | None], list[Revision]]

    def __init__(self, store: Store) -> None:
        self._capabilities = _wrap_method(lambda: store.capabilities)
        for name in _STORE:
            if hasattr(store, name):
                setattr(self, name, _wrap_method(getattr(store, name)))

    @property
    def capabilities(self) -> frozenset[str]:
        offered: frozenset[str] = self._capabilities()
        return offered


class ReadOnlyTransients:
    """The read methods of transient entries."""

    __slots__ = _TRANSIENTS

    get: Callable[[tuple[str, str], str, int], StoredEntry | None]

    def __init__(self, transients: TransientEntries) -> None:
        for name in _TRANSIENTS:
            setattr(self, name, _wrap_method(getattr(transients, name)))


def make_read_only(storage: Storage) -> Storage:
    """Return the storage with read-only views of its store and its transient entries."""
    if isinstance(storage.store, ReadOnlyStore):
        return storage
    return replace(
        storage,
        store=cast(Store, ReadOnlyStore(storage.store)),
        transients=cast(TransientEntries, ReadOnlyTransients(storage.transients)),
    )


def _wrap_method(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method in a function: a bound method would expose its object."""

    def asking(*given: Any) -> Any:
        return ask(*given)

    return asking
