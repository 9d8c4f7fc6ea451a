"""Checks of the numbers that callers give, and numpy for many of them."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, TypeGuard, overload

from holdfast.errors import InvalidValue, Unavailable

MAX_AMOUNT: Final = 2**53
"""The largest amount of tokens, milliseconds or billionths of a dollar; JSON numbers are exact up to here."""
_MAX_FLOAT: Final = sys.float_info.max


@overload
def is_number(
    value: object, *, least: float | None = None, most: float | None = None, whole: Literal[True] = True
) -> TypeGuard[int]: ...
@overload
def is_number(
    value: object, *, least: float | None = None, most: float | None = None, whole: bool
) -> TypeGuard[float]: ...
def is_number(value: object, *, least: float | None = None, most: float | None = None, whole: bool = True) -> bool:
    """Return True for a finite number within its bounds; with `whole`, for an integer only. A bool is no number."""
    kinds = int if whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    finite = whole or -_MAX_FLOAT <= value <= _MAX_FLOAT
    return finite and (least is None or value >= least) and (most is None or value <= most)


@overload
def check_number(
    name: str, value: object, *, least: float | None = None, most: float | None = None, whole: Literal[True] = True
) -> int: ...
@overload
def check_number(
    name: str, value: object, *, least: float | None = None, most: float | None = None, whole: Literal[False]
) -> float: ...
def check_number(
    name: str, value: object, *, least: float | None = None, most: float | None = None, whole: bool = True
) -> float:
    """Return a number that is within its bounds, as an integer or, without `whole`, as a float; refuse any other."""
    if is_number(value, least=least, most=most, whole=whole):
        return value if whole else float(value)
    kind = "a whole number" if whole else "a number"
    if least is not None and most is not None:
        kind += f" between {least:,} and {most:,}"
    elif least is not None:
        kind += f" of at least {least:,}"
    elif most is not None:
        kind += f" of at most {most:,}"
    raise InvalidValue(f"{name} must be {kind}, not {short_repr(value)}.")


def short_repr(value: object) -> str:
    """Return the beginning of a refused value's repr."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"a very large {type(value).__name__}"  # Python refuses to print integers with thousands of digits.


@cache
def load_numpy() -> Any:
    """Return numpy, imported on first use: opening, appending and packing do not need it.

    An interruption while it is imported leaves it half loaded for as long as the process lives.
    """
    try:
        found = import_module("numpy")
        assert found.vecdot, "numpy 2 or later"
        assert found.unique, "all of it"
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"numpy cannot be loaded ({error}). Start the process again, or install numpy 2.") from None
    return found
