"""Names: ULIDs that only grow, ids without traps, scopes that can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidValue
from holdfast.records.ids import _INVISIBLE, check_id, check_key, next_ulid, ulid_bytes, ulid_text
from holdfast.records.scope import SCOPE_KINDS, Scope, parse_scope
from holdfast.system import SystemIds
from holdfast.testing.clock import FrozenClock, SeededIds


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_goes_to_text_and_back_and_keeps_its_order(raw: bytes) -> None:
    text = ulid_text(raw)
    assert len(text) == 26
    assert ulid_bytes(text) == raw
    assert (text < ulid_text(bytes([raw[0] ^ 0x80]) + raw[1:])) == (raw < bytes([raw[0] ^ 0x80]) + raw[1:])


def test_a_known_ulid_has_its_known_text() -> None:
    assert ulid_text(bytes(16)) == "0" * 26
    assert ulid_text(b"\xff" * 16) == "7" + "Z" * 25
    assert ulid_bytes("01ARZ3NDEKTSV4RRFFQ69G5FAV").hex() == "01563e3ab5d3d6764c61efb99302bd5b"


@pytest.mark.parametrize(
    "text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "I" * 26, "\uff10" * 26, "0" * 25 + "\n", "z" * 26]
)
def test_what_is_not_a_ulid_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        ulid_bytes(text)


@pytest.mark.parametrize("make", [SystemIds, SeededIds])
def test_ulids_grow_in_the_same_millisecond_and_when_the_clock_goes_back(make: type) -> None:
    clock = FrozenClock()
    ids = make(clock)
    made = []
    for jump in (0, 0, 0, -1, -10_000, 5, 0, -86_400_000 * 3650, 1):
        clock.jump(jump)
        made.extend(ids.ulid() for _ in range(50))
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ulids_run_out_with_a_clear_error() -> None:
    with pytest.raises(InvalidValue, match="system time"):
        next_ulid(2**128 - 1, 0, 0)


@pytest.mark.parametrize(
    "value", ["", "a" * 129, "a\nb", "a\0", "\x7f", "\x85", "\u2028", "e\u0301", "\ud800", 7, None, b"x"]
)
def test_an_id_that_could_do_harm_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        check_id(value)
    with pytest.raises(InvalidValue):
        Scope.session(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "char", ["\u200b", "\u200d", "\u2060", "\ufeff", "\u202e", "\xad", "\u034f", "\u3164", "\ufe0f"]
)
def test_ids_and_keys_that_would_look_like_another_are_refused(char: str) -> None:
    for check in (check_id, check_key, Scope.session):
        with pytest.raises(InvalidValue, match="looks the same"):
            check(f"ali{char}ce")


def test_ids_up_to_the_limits_are_accepted() -> None:
    assert check_id("é" * 128)
    assert check_key("k" * 512)
    for key in ("k" * 513, "é" * 300, ""):
        with pytest.raises(InvalidValue):
            check_key(key)


VISIBLE = st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"), exclude_characters=list(_INVISIBLE))
IDS = st.text(VISIBLE, min_size=1, max_size=128).filter(
    lambda text: text == __import__("unicodedata").normalize("NFC", text)
)
SCOPES = st.lists(st.tuples(st.sampled_from(sorted(SCOPE_KINDS)), IDS), max_size=4).map(
    lambda parts: Scope(tuple(parts))
)


@given(SCOPES)
def test_a_scope_is_read_back_from_its_text(scope: Scope) -> None:
    assert parse_scope(scope.text) == scope
    assert Scope.of(scope.text if scope.parts else "global") == scope


@given(SCOPES, SCOPES)
def test_two_scopes_have_the_same_text_only_if_they_are_equal(one: Scope, other: Scope) -> None:
    assert (one.text == other.text) == (one == other)


def test_constructors_and_texts() -> None:
    assert Scope.actor("researcher", session="s1", thread="t1").text == "actor/researcher/session/s1/thread/t1"
    assert Scope.thread("s1").text == "session/s1/thread/main"
    assert Scope.custom("ns", "a/b").text == "custom/ns/id/a%2Fb"
    assert Scope.operator("coder", workflow="w").text == "workflow/w/operator/coder"
    assert Scope.session("..").text == "session/%2E."
    assert Scope.GLOBAL.text == "global"
    assert Scope.of("alice") == Scope.session("alice")
    assert Scope.actor("a", session="s").get("session") == "s"
    assert Scope.session("global") != Scope.GLOBAL


@pytest.mark.parametrize(
    "text",
    [
        "session/",
        "/x",
        "session/a/b",
        "planet/x",
        "session/%",
        "session/%ff",
        "session/a%20b%0A",
        "session/%61",
        "a/b/",
        "session/.x",
    ],
)
def test_a_text_that_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Scope.of(text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000 + "/a",
        "session/" + "x" * 100_000,
        "a/b/" + "c" * 100_000,
        "user/%ff" + "y" * 100_000,
        "user/%41" * 3,
    ],
)
def test_a_refused_scope_is_repeated_in_short(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Scope.of(text)
    assert len(str(refused.value)) < 1_000
