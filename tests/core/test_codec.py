"""One canonical form: what has none is refused, what has one is stable."""

from __future__ import annotations

import datetime
import decimal
import hmac
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.journal.codec import check_plain, decode, encode, inner_hash, outer_hash, seal_draft
from holdfast.errors import Corrupt, InvalidValue, TooLarge
from holdfast.records.events.envelope import AppContent, AppFacts, Draft
from holdfast.records.events.frames import FramePushed, FrameSpent
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_decoding_gives_back_what_was_encoded(value: object) -> None:
    assert decode(encode(value)) == value


@given(PLAIN)
def test_equal_data_has_equal_bytes(value: object) -> None:
    def shuffled(item: object) -> object:
        if isinstance(item, dict):
            return {key: shuffled(item[key]) for key in reversed(list(item))}
        return [shuffled(child) for child in item] if isinstance(item, list) else item

    assert encode(shuffled(value)) == encode(value)
    assert encode(decode(encode(value))) == encode(value)


def test_the_form_is_the_one_that_was_frozen() -> None:
    value = {"b": [1, 2.5, -0.0, 1e22, True, None], "a": 'é"\\\n\x7f🙂', "": {}}
    assert encode(value) == '{"":{},"a":"é\\"\\\\\\n\x7f🙂","b":[1,2.5,-0.0,1e22,true,null]}'.encode()


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = [
    math.nan,
    math.inf,
    -math.inf,
    2**63,
    -(2**63) - 1,
    12345678901234567890,
    10**5000,
    "a\0b",
    {"a\0": 1},
    "\ud800",
    {"\udfff": 1},
    ["ok", ["\ud83d"]],
    {1: 2},
    {None: 1},
    {True: 1},
    {("a",): 1},
    b"bytes",
    bytearray(b"x"),
    {1, 2},
    frozenset(),
    object(),
    decimal.Decimal("1.1"),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 1),
    complex(1, 2),
    range(3),
    msgspec.UNSET,
    _nested(65),
    _nested(10_000),
    {"a": _nested(70)},
]


@pytest.mark.parametrize("value", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        encode(value)
    with pytest.raises(InvalidValue):
        encode({"inside": [value]})


def test_the_deepest_allowed_nesting_is_accepted() -> None:
    assert decode(encode(_nested(64))) == _nested(64)
    check_plain(_nested(3), nesting=3)
    with pytest.raises(InvalidValue, match="nested deeper than 3"):
        check_plain(_nested(4), nesting=3)


def test_unreadable_bytes_are_corruption_and_not_a_driver_error() -> None:
    for data in (b"{", b"\xff", b"", b"[" * 100_000, b'{"a":1}{'):
        with pytest.raises(Corrupt):
            decode(data)


def _seal(draft: Draft, settings: Settings | None = None) -> object:
    return seal_draft(draft, id=bytes(16), at=1, salt=bytes(16), settings=settings or Settings())


def test_an_event_over_the_limit_is_refused_and_the_message_says_what_to_do() -> None:
    draft = Draft(type="app.big", facts=AppFacts(), content=AppContent(data="x" * 1000))
    with pytest.raises(TooLarge, match="artifact"):
        _seal(draft, Settings(event_bytes=1000))
    _seal(draft, Settings(event_bytes=1100))


def test_facts_and_content_must_be_those_of_the_catalogue() -> None:
    with pytest.raises(InvalidValue, match="not an event of the catalogue"):
        _seal(Draft(type="frame.exploded", facts=AppFacts()))
    with pytest.raises(InvalidValue, match="FramePushed"):
        _seal(Draft(type="frame.pushed", facts=AppFacts()))
    with pytest.raises(InvalidValue, match="GoalContent"):
        _seal(Draft(type="frame.pushed", facts=FramePushed(frame="x"), content=AppContent()))
    with pytest.raises(InvalidValue, match="no content"):
        _seal(Draft(type="frame.spent", facts=FrameSpent(frame="x", usage=Usage()), content=AppContent()))


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_the_digest_of_content_is_plain_hmac_sha256(salt: bytes, content: bytes) -> None:
    assert outer_hash(salt, inner_hash(salt, content)) == hmac.digest(salt, content, "sha256")
