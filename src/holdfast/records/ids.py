"""Identifiers: ULIDs made by holdfast, and ids chosen by people, checked at every door.

A ULID is 26 characters of Crockford base 32 outside and 16 bytes inside. Its order
is the order of creation within one generator; across machines the clock never orders
anything here, streams and versions do.
"""

from __future__ import annotations

import unicodedata

from holdfast.errors import InvalidValue

MAX_ID_CHARS = 128
MAX_KEY_BYTES = 512

ULID_CHARS = 26
_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(chr(first) + chr(second) for first in _CROCKFORD for second in _CROCKFORD)
_FORTY_BITS = (1 << 40) - 1
_TO_DIGITS = bytes.maketrans(_CROCKFORD, b"0123456789ABCDEFGHIJKLMNOPQRSTUV")
_ENTROPY_BITS = 80
_LIMIT = 1 << 128
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def ulid_text(raw: bytes) -> str:
    """The 26 characters of a 16-byte ULID."""
    number = int.from_bytes(raw, "big")
    # Pair by pair from three small numbers: this is done for every event that is read, and shifting large ones is slow.
    pair, time, high, low = _PAIRS, number >> 80, number >> 40 & _FORTY_BITS, number & _FORTY_BITS
    return (
        f"{pair[time >> 40]}{pair[time >> 30 & 1023]}{pair[time >> 20 & 1023]}{pair[time >> 10 & 1023]}"
        f"{pair[time & 1023]}{pair[high >> 30]}{pair[high >> 20 & 1023]}{pair[high >> 10 & 1023]}{pair[high & 1023]}"
        f"{pair[low >> 30]}{pair[low >> 20 & 1023]}{pair[low >> 10 & 1023]}{pair[low & 1023]}"
    )


def ulid_bytes(text: str) -> bytes:
    """The 16 bytes of a ULID's text; refuses anything that is not exactly one."""
    if len(text) == ULID_CHARS and text[0] <= "7" and text.isascii():
        plain = text.encode("ascii")
        if not plain.translate(None, _CROCKFORD):
            # As a number in base 32: several times quicker than base64.b32decode, and this is asked often.
            return int(plain.translate(_TO_DIGITS), 32).to_bytes(16, "big")
    raise InvalidValue(f"{text[:40]!r} is not a ULID: 26 characters of Crockford base 32 are needed.")


def hex_bytes(text: str) -> bytes:
    """The bytes of a digest or name in hexadecimal."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidValue(f"{text[:40]!r} is not hexadecimal.") from None


def next_ulid(previous: int, milliseconds: int, entropy: int) -> int:
    """The ULID after `previous` as an integer: strictly larger, whatever the clock does."""
    fresh = (milliseconds << _ENTROPY_BITS) | entropy
    if fresh <= previous:
        # Same millisecond, or the clock went back: count on from the last one.
        fresh = previous + 1
    if fresh >= _LIMIT:
        raise InvalidValue("No ULIDs are left for this clock. Check the system time.")
    return fresh


def check_id(value: object, what: str = "id", *, limit: int = MAX_ID_CHARS) -> str:
    """An id from outside: 1 to 128 characters, NFC, no control characters or surrogates."""
    if not isinstance(value, str):
        raise InvalidValue(f"{what} must be a string, not {type(value).__name__}.")
    if not value:
        raise InvalidValue(f"{what} must not be empty.")
    if len(value) > limit:
        raise InvalidValue(f"{what} has {len(value)} characters; at most {limit} are allowed.")
    if value.isascii():
        if value.isprintable():
            return value
        raise InvalidValue(f"{what} {value!r} holds a control character. Use printable text.")
    for char in value:
        if unicodedata.category(char) in _UNPRINTABLE:
            raise InvalidValue(f"{what} {value!r} holds a control character or a lone surrogate. Use printable text.")
    if not unicodedata.is_normalized("NFC", value):
        raise InvalidValue(f"{what} {value!r} is not in Unicode NFC form, so it would have an invisible twin.")
    return value


def check_key(value: object) -> str:
    """An idempotency key: like an id, but up to 512 bytes."""
    key = check_id(value, "key", limit=MAX_KEY_BYTES)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidValue(f"key is over {MAX_KEY_BYTES} bytes. Use a shorter one, such as a request id.")
    return key
