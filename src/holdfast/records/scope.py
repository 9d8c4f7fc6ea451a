"""Scope: the address of a stream, a store's folder and a cache entry, as one ordered path.

The text form is `kind/id/kind/id`, each id percent-encoded and never empty, so that
two scopes are equal exactly when their texts are, and the text can be read back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.ids import check_id

KINDS = frozenset({"actor", "session", "thread", "operator", "workflow", "user", "frame", "custom", "id"})
MAX_PARTS = 8
MAIN_THREAD = "main"


class Scope(msgspec.Struct, frozen=True, order=True):
    """An ordered path of (kind, id). Make one with the named constructors."""

    parts: tuple[tuple[str, str], ...]

    GLOBAL: ClassVar[Scope]

    def __post_init__(self) -> None:
        if len(self.parts) > MAX_PARTS:
            raise InvalidValue(f"A scope has at most {MAX_PARTS} parts.")
        for kind, name in self.parts:
            if kind not in KINDS:
                raise InvalidValue(f"{kind!r} is not a kind of scope. Known kinds: {', '.join(sorted(KINDS))}.")
            check_id(name, f"{kind} id")

    @classmethod
    def actor(cls, name: str, *, session: str | None = None, thread: str | None = None) -> Scope:
        """Where the frames of one doer live, optionally within a session and thread."""
        parts = [("actor", name)]
        if session is not None:
            parts.append(("session", session))
        if thread is not None:
            parts.append(("thread", thread))
        return cls(tuple(parts))

    @classmethod
    def session(cls, name: str) -> Scope:
        """A session as a whole."""
        return cls((("session", name),))

    @classmethod
    def thread(cls, session: str, name: str = MAIN_THREAD) -> Scope:
        """One line of a conversation: the stream that its messages live in."""
        return cls((("session", session), ("thread", name)))

    @classmethod
    def operator(cls, name: str, *, workflow: str | None = None) -> Scope:
        """What one operator keeps, optionally within a workflow."""
        if workflow is None:
            return cls((("operator", name),))
        return cls((("workflow", workflow), ("operator", name)))

    @classmethod
    def workflow(cls, name: str) -> Scope:
        """A task's workflow."""
        return cls((("workflow", name),))

    @classmethod
    def user(cls, name: str) -> Scope:
        """What is kept about one user. Names are never personal: use a pseudonym."""
        return cls((("user", name),))

    @classmethod
    def frame(cls, frame_id: str) -> Scope:
        """The private messages of a child frame."""
        return cls((("frame", frame_id),))

    @classmethod
    def custom(cls, namespace: str, name: str) -> Scope:
        """An address of your own."""
        return cls((("custom", namespace), ("id", name)))

    @classmethod
    def of(cls, value: Scope | str) -> Scope:
        """A scope as given, a scope's text, or a bare id, which means that session."""
        if isinstance(value, Scope):
            return value
        if not isinstance(value, str):
            raise InvalidValue(f"A scope must be a Scope or a string, not {type(value).__name__}.")
        return parse_scope(value) if "/" in value or value == "global" else cls.session(value)

    @property
    def text(self) -> str:
        """The reversible text form, also the stream's name."""
        return _text(self.parts)

    def get(self, kind: str) -> str | None:
        """The id of the first part of that kind, or None."""
        return next((name for part, name in self.parts if part == kind), None)

    def __str__(self) -> str:
        return self.text


Scope.GLOBAL = Scope(())

Address = Scope | str
"""What is accepted wherever a scope is: a scope, its text, or a bare id, which means that session."""


@lru_cache(maxsize=1024)
def _text(parts: tuple[tuple[str, str], ...]) -> str:
    if not parts:
        return "global"
    return "/".join(f"{kind}/{_encode(name)}" for kind, name in parts)


def _encode(name: str) -> str:
    text = quote(name, safe="")
    # A leading dot would make `.` and `..`, which are not names in a file system.
    return "%2E" + text[1:] if text.startswith(".") else text


def _decode(piece: str) -> str:
    try:
        return unquote(piece, errors="strict")
    except UnicodeDecodeError:
        raise InvalidValue(f"{piece!r} is not percent-encoded UTF-8, so it is no part of a scope.") from None


@lru_cache(maxsize=1024)
def parse_scope(text: str) -> Scope:
    """Read a scope's text form back; refuses any text that is not exactly one."""
    if text == "global":
        return Scope.GLOBAL
    pieces = text.split("/")
    if len(pieces) % 2:
        raise InvalidValue(
            f"{text!r} is not a scope. Write kind/id pairs such as session/s1, or a bare id without '/' for a session."
        )
    scope = Scope(tuple(zip(pieces[::2], map(_decode, pieces[1::2]), strict=True)))
    if scope.text != text:
        raise InvalidValue(f"{text!r} is not in canonical form; write {scope.text!r}.")
    return scope
