"""`holdfast state get`, `set` and `rm`: one entry, of a journal or of another store.

What is given is JSON where it can be read so and text otherwise. What cannot be stored is refused as a whole.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from msgspec.structs import asdict

from holdfast.ambient import SystemClock
from holdfast.cli.conversation_file import STDIN, body_of
from holdfast.cli.main import OK
from holdfast.cli.opening import Json, Tenant, switch
from holdfast.cli.output import compact, console, emit, fields, harmless, note, span, tell, whole
from holdfast.cli.places import EntryKey, ExpectedVersion, Once, Place, ScopeText, StoreUrl, is_new, opened, placed
from holdfast.cli.show import when
from holdfast.client.state import open_store
from holdfast.core.entries import Options, shown
from holdfast.errors import EntryNotFound, InvalidValue
from holdfast.records.entries import CONTENT_KINDS, LIFETIMES, REDUCERS, TIERS, Entry

INDENT = 2
STAYING = tuple(lifetime for lifetime in LIFETIMES if lifetime != "transient")
SCOPE_AND_KEY = ("SCOPE", "KEY")

JournalPath = Annotated[
    str | None,
    Parameter(
        name="PATH",
        show_default=False,
        help="The journal: a path or sqlite:///path. Left out when HOLDFAST_URL or --store says where.",
    ),
]


def get(
    path: JournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show what a key holds."""
    place, (where, name) = placed((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with opened(place) as stored:
        state = stored(where)
        entry = state.entry(name)
    if entry is None:
        raise _missing(place, state.scope, name)
    if json:
        emit(fields(entry))
        return OK
    _print(entry.value)
    note(f"version {entry.version}, written {when(entry.written_at)}{''.join(f', {word}' for word in kept(entry))}")
    return OK


def set_(
    path: JournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    value: Annotated[
        str | None, Parameter(name="VALUE", show_default=False, help="JSON if it can be read so, else text.")
    ] = None,
    /,
    *,
    stdin: Annotated[
        bool, Parameter(name=STDIN, negative=(), show_default=False, help="The value is on standard input.")
    ] = False,
    file: Annotated[str | None, Parameter(show_default=False, help="The value is in this file.")] = None,
    text: Annotated[bool, switch("The value is text, also if it could be read as JSON.")] = False,
    reducer: Annotated[
        str, Parameter(help=f"How the old value and this become the new one: {', '.join(REDUCERS)}.")
    ] = REDUCERS[0],
    expected_version: ExpectedVersion = None,
    ttl: Annotated[float | None, Parameter(show_default=False, help="It ends after so many seconds.")] = None,
    tier: Annotated[str | None, Parameter(show_default=False, help=f"One of {', '.join(TIERS)}.")] = None,
    lifetime: Annotated[str | None, Parameter(show_default=False, help=f"One of {', '.join(STAYING)}.")] = None,
    content_kind: Annotated[
        str | None, Parameter(show_default=False, help=f"What it is, such as {', '.join(CONTENT_KINDS)}.")
    ] = None,
    salience: Annotated[float | None, Parameter(show_default=False, help="How much it matters, from 0 to 1.")] = None,
    once: Once = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Write a key."""
    if lifetime is not None and lifetime not in STAYING:
        # A transient entry would be gone with this process.
        raise InvalidValue(f"--lifetime must be one of {', '.join(STAYING)}, not {shown(lifetime)}.")
    source = _source(stdin, file, value)
    wanted = (*SCOPE_AND_KEY, "VALUE") if source is None else SCOPE_AND_KEY
    place, (where, name, *given) = placed((path, scope, key, value), wanted, store=store, tenant=tenant)
    body = given[0] if source is None else _read(source)
    options = Options(tier=tier, lifetime=lifetime, content_kind=content_kind, salience=salience, ttl=ttl)
    how = {**asdict(options), "expected_version": expected_version, "reducer": reducer, "key": once}
    into, version = _write(place, where, name, body if text else _value(body), how)
    tell(json, {"scope": into, "key": name, "version": version}, f"{name!r} of {into} is at version {version}.")
    return OK


def rm(
    path: JournalPath = None,
    scope: ScopeText = None,
    key: EntryKey = None,
    /,
    *,
    expected_version: ExpectedVersion = None,
    once: Once = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Remove a key."""
    place, (where, name) = placed((path, scope, key), SCOPE_AND_KEY, store=store, tenant=tenant)
    with opened(place) as stored:
        state = stored(where)
        if not state.delete(name, expected_version=expected_version, key=once):
            raise _missing(place, state.scope, name)
    tell(json, {"scope": state.scope, "key": name, "removed": True}, f"Removed {name!r} of {state.scope}.")
    return OK


def kept(entry: Entry) -> list[str]:
    """How an entry is kept, as far as anybody said so."""
    said = [word for word in (entry.tier, entry.lifetime, entry.content_kind) if word is not None]
    if entry.salience is not None:
        said.append(f"salience {entry.salience:g}")
    if entry.expires_at is not None:
        said.append(f"ends in {span(max(0, entry.expires_at - SystemClock().now_ms()))}")
    return said


def as_text(value: Any) -> str:
    """A value as people read it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else compact(value)


def _missing(place: Place, scope: str, key: str) -> EntryNotFound:
    command = place.spelled("state ls", "--scope", scope)
    return EntryNotFound(f"{key!r} of {scope} has no value. See `{command}`; check the key and the scope.")


def _print(value: Any) -> None:
    """For people with line breaks; in a pipe, what is not text is one line."""
    if isinstance(value, str):
        shown = whole(value)
    elif console().is_terminal:
        lines = msgspec.json.format(compact(value), indent=INDENT).split("\n")
        shown = "\n".join(map(harmless, lines))
    else:
        shown = harmless(compact(value))
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")
    sys.stdout.flush()


def _source(stdin: bool, file: str | None, value: str | None) -> str | None:
    """Where a value comes from that is not an argument."""
    if stdin + (file is not None) + (value is not None) > 1:
        raise InvalidValue("Give the value once: as VALUE, with --file, or on standard input with -.")
    return STDIN if stdin else file


def _write(place: Place, scope: str, key: str, value: Any, how: dict[str, Any]) -> tuple[str, int]:
    """The scope in its text form, and the new version."""
    if is_new(place):
        with open_store("memory:") as rehearsal:
            rehearsal(scope).write(key, value, **how)  # What is refused is refused before anything is made.
    with opened(place, make=True) as stored:
        state = stored(scope)
        return state.scope, state.write(key, value, **how)


def _read(source: str) -> str:
    body, name = body_of(source, "a value")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidValue(
            f"{name} is not text in UTF-8, so it cannot be a value. Keep it elsewhere and store where, or encode it."
        ) from None


def _value(text: str) -> Any:
    """JSON if it is some, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    except RecursionError:
        raise InvalidValue("The value is nested too deeply. Flatten it, or store it as text with --text.") from None
