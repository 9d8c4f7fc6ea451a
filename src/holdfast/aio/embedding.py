"""An embedder for asyncio: it may be a coroutine function, or an object whose `embed` is one.

What may embed runs in a pool of its own: embedding takes long, and short operations do not queue behind it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.aio.loops import awaited, crossing
from holdfast.aio.threads import Threads
from holdfast.errors import Refused
from holdfast.model.embedding import CheckedEmbedder
from holdfast.ports import Embedder

SEARCH = "holdfast-search"

T = TypeVar("T")


class AsyncEmbedder(Protocol):
    """As Embedder, awaited; lists of numbers will do in place of bytes."""

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> Any: ...


AnyEmbedder = str | os.PathLike[str] | Embedder | AsyncEmbedder | Callable[..., Any]


class EmbedderOnALoop:
    """A caller's own embedder of either kind, as one that is done when it returns."""

    def __init__(self, given: Any) -> None:
        own = getattr(given, "embed", None)
        function = own if callable(own) else given
        self.name = getattr(given, "name", None) or getattr(given, "__name__", None)
        self.dimensions = getattr(given, "dimensions", None)
        # It keeps the signature, by which others know whether it is told what is a query.
        self.embed = functools.update_wrapper(_returning(function), function, assigned=(), updated=())


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    def embed(*texts: Any, **told: Any) -> Any:
        made = function(*texts, **told)
        if not inspect.isawaitable(made):
            return made
        nowhere = Refused(
            "An async embedder is awaited by the asyncio client only: search and write with that, "
            "or read in a thread that it started, as operators do."
        )
        return awaited(made, what="an embedder", nowhere=nowhere)

    return embed


def embedder_on_a_loop(given: AnyEmbedder | None) -> Any:
    """An embedder for an asyncio client; what is none of the caller's own is left for others to take or refuse."""
    own: Any = given
    if given is None or isinstance(given, str | os.PathLike | CheckedEmbedder | type):
        return own
    try:
        return EmbedderOnALoop(own) if callable(own) or callable(own.embed) else own
    except Exception:  # noqa: BLE001  # It cannot even say what it is: whoever checks embedders says so.
        return own


async def searching(threads: Threads, work: Callable[[], T]) -> T:
    """Run what may embed something, in a thread. Once begun, it goes on even if the await is cancelled."""
    return await crossing(threads, SEARCH, work)
