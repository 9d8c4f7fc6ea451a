"""Scope: the address of a stream, a store's folder and a cache entry, as one ordered path.

The text form is `kind/id/kind/id`, each id percent-encoded and never empty, so that
two scopes are equal exactly when their texts are, and the text can be read back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Literal, overload
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.ids import OperatorId, SessionId, WorkflowId, check_id

SCOPE_KINDS = frozenset({"actor", "session", "thread", "operator", "workflow", "user", "frame", "custom", "id"})
MAX_SCOPE_PARTS = 8
MAIN_THREAD = "main"
SCOPES_CACHED = 4096
"""Scopes whose text form is kept, and the other way round: those of a thousand conversations at once."""


class Scope(msgspec.Struct, frozen=True, order=True):
    """An ordered path of (kind, id). Construct it with the named constructors."""

    parts: tuple[tuple[str, str], ...]

    GLOBAL: ClassVar[Scope]

    def __post_init__(self) -> None:
        if len(self.parts) > MAX_SCOPE_PARTS:
            raise InvalidValue(f"A scope has at most {MAX_SCOPE_PARTS} parts.")
        for kind, name in self.parts:
            if kind not in SCOPE_KINDS:
                known = ", ".join(sorted(SCOPE_KINDS))
                raise InvalidValue(f"{kind!r:.80} is not a kind of scope. Known kinds: {known}.")
            check_id(name, f"{kind} id")

    @classmethod
    def actor(cls, name: str, *, session: str | None = None, thread: str | None = None) -> Scope:
        """Return the scope of an actor's frames, optionally within a session and thread."""
        parts = [("actor", name)]
        if session is not None:
            parts.append(("session", session))
        if thread is not None:
            parts.append(("thread", thread))
        return cls(tuple(parts))

    @classmethod
    def session(cls, name: str) -> Scope:
        """Return the scope of a whole session."""
        return cls((("session", name),))

    @classmethod
    def thread(cls, session: str, name: str = MAIN_THREAD) -> Scope:
        """Return the scope of one thread of a session: the stream that holds its messages."""
        return cls((("session", session), ("thread", name)))

    @classmethod
    def operator(cls, name: str, *, workflow: str | None = None) -> Scope:
        """Return the scope of an operator's state, optionally within a workflow."""
        if workflow is None:
            return cls((("operator", name),))
        return cls((("workflow", workflow), ("operator", name)))

    @classmethod
    def workflow(cls, name: str) -> Scope:
        """Return the scope of a task's workflow."""
        return cls((("workflow", name),))

    @classmethod
    def user(cls, name: str) -> Scope:
        """Return the scope of the data kept about one user. The name must not be personal: use a pseudonym."""
        return cls((("user", name),))

    @classmethod
    def frame(cls, frame_id: str) -> Scope:
        """Return the scope of a child frame's private messages."""
        return cls((("frame", frame_id),))

    @classmethod
    def custom(cls, namespace: str, name: str) -> Scope:
        """Return a scope of the application's own."""
        return cls((("custom", namespace), ("id", name)))

    @classmethod
    def of(cls, value: Scope | str) -> Scope:
        """Convert a Scope, a scope's text or a bare session id to a Scope."""
        if isinstance(value, Scope):
            return value
        if not isinstance(value, str):
            raise InvalidValue(f"A scope must be a Scope or a string, not {type(value).__name__}.")
        return parse_scope(value) if "/" in value or value == "global" else cls.session(value)

    @property
    def text(self) -> str:
        """The reversible text form, also the stream's name."""
        return _scope_text(self.parts)

    @overload
    def get(self, kind: Literal["operator"]) -> OperatorId | None: ...
    @overload
    def get(self, kind: Literal["session"]) -> SessionId | None: ...
    @overload
    def get(self, kind: Literal["workflow"]) -> WorkflowId | None: ...
    @overload
    def get(self, kind: str) -> str | None: ...
    def get(self, kind: str) -> str | None:
        """Return the id of the first part of this kind, or None."""
        for part, name in self.parts:
            if part == kind:
                return name
        return None

    def __str__(self) -> str:
        return self.text


Scope.GLOBAL = Scope(())

Address = Scope | str
"""A scope as arguments accept it: a Scope, a scope's text, or a bare session id."""


@lru_cache(maxsize=SCOPES_CACHED)
def _scope_text(parts: tuple[tuple[str, str], ...]) -> str:
    if not parts:
        return "global"
    return "/".join(f"{kind}/{_encode(name)}" for kind, name in parts)


def _encode(name: str) -> str:
    text = quote(name, safe="")
    # A leading dot could produce `.` or `..`, which are not usable as file names.
    return "%2E" + text[1:] if text.startswith(".") else text


def _decode(piece: str) -> str:
    try:
        return unquote(piece, errors="strict")
    except UnicodeDecodeError:
        raise InvalidValue(f"{piece!r:.80} is not percent-encoded UTF-8, so it is no part of a scope.") from None


@lru_cache(maxsize=SCOPES_CACHED)
def parse_scope(text: str) -> Scope:
    """Parse a scope's text form; refuse any text that is not canonical."""
    if text == "global":
        return Scope.GLOBAL
    pieces = text.split("/")
    if len(pieces) % 2:
        raise InvalidValue(
            f"{text!r:.80} is not a scope. "
            "Write kind/id pairs such as session/s1, or a bare id without '/' for a session."
        )
    scope = Scope(tuple(zip(pieces[::2], map(_decode, pieces[1::2]), strict=True)))
    if scope.text != text:
        raise InvalidValue(f"{text!r:.80} is not in canonical form; write {scope.text!r:.400}.")
    return scope
