"""One path for each key, none of which leads out of the folder, and two formats that are exact."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, Refused
from holdfast.records.entries import StoredEntry
from holdfast.store.fs import files as fs_files
from holdfast.store.fs import format as file_format
from holdfast.store.fs.store import FsStore
from tests.scale import volume
from tests.stores.fs_kit import entry, files, listed

HOSTILE = [
    "a", "a/b", "a//b", "/a", "a/", "/", "//", "A", "a.json", "a.json/b", "a.md", "a.md/b", "a.json.json", "..", ".",
    "../../x", "/etc/passwd", ".hidden", "a.", "a..b", "a b", " a", "a ", "con", "con.txt", "nul/x", "com1", "CON",
    "lpt9.json",
    "%", "%41", "%empty", "%sha256-" + "0" * 64, "a%2Fb", "a\\b", "c:x", "a*?<>|\"'", "~", "$HOME", "é", "ß", "ss", "ﬁ",
    "\u200d", "🦀", "\u202etxt", "thread", "thread/t1", "session/s1/a", ".lock", ".new-1-0", "x" * 512, "é" * 500,
    "x" * 300 + "/y", "y/" + "x" * 300, "a/" * 255 + "b", "/" * 511, "user_%", "\U0010ffff\U0010ffff",
    "k" * 200, "k" * 201,
]  # fmt: skip

keys = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.sampled_from("aAbé/.-%_ 🦀jsonmd"), min_size=1, max_size=12),
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.sampled_from(["---\n", "```json\n1\n```\n", "a\r\n", "\n", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.fixture(params=["json", "markdown"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FsStore:
    return FsStore(tmp_path / "state", format=request.param, search=True)


# names


def no_two_keys_share_a_name(folder: Path) -> None:
    """On no disk: also not where names differ by nothing but case, form of Unicode or what Windows cuts off."""
    store = FsStore(folder)
    for number, key in enumerate(HOSTILE):
        store.put("session/s1", key, entry(number))
    assert [store.get("session/s1", key) for key in HOSTILE] == [
        msgspec.structs.replace(entry(number), version=store.get("session/s1", key).version)  # type: ignore[union-attr]
        for number, key in enumerate(HOSTILE)
    ]
    assert listed(store, "session/s1") == sorted(HOSTILE)
    assert len({unicodedata.normalize("NFKC", name).casefold() for name in files(folder)}) == len(HOSTILE)
    assert listed(store, "session/s1/thread/t1") == listed(store, "session/S1") == []


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here."""
    monkeypatch.setattr(fs_files, "sync_handle", lambda handle: None)


def test_hostile_keys_have_a_file_each(tmp_path: Path) -> None:
    no_two_keys_share_a_name(tmp_path / "state")
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


def cleaned(segment: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", segment) or "_"


@pytest.mark.parametrize(
    "wrong",
    [cleaned, lambda segment: file_format._UNSAFE_CHARACTERS.sub(lambda found: found[0], segment) or "%empty"],
    ids=["cleaned", "as it is"],
)
def test_names_that_are_not_encoded_are_noticed(wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_format, "encode_segment", wrong)
    with pytest.raises((AssertionError, Corrupt, Refused)):
        no_two_keys_share_a_name(tmp_path / "state")


@settings(max_examples=volume(60, 5_000), deadline=None)
@given(st.lists(keys, min_size=2, max_size=6, unique=True))
def test_names_are_safe_and_say_their_key(some: list[str]) -> None:
    paths = [file_format.key_path(key) for key in some]
    assert len({tuple(name.casefold() for name in path) for path in paths}) == len(some)
    for key, path in zip(some, paths, strict=True):
        assert all(re.fullmatch(r"[a-zA-Z0-9%_-][a-zA-Z0-9%_.-]*", name) and len(name) <= 200 for name in path)
        assert file_format.is_digest(path) or file_format.key_from_path(path) == key


def test_folders_mirror_scopes(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    for scope in (
        "global",
        "session/s1",
        "session/S1",
        "session/s1/thread/t1",
        "custom/ns/id/%2E..",
        "workflow/w/operator/o",
    ):
        store.put(scope, "history/turn-1", entry(scope))
    assert files(tmp_path) == [
        "custom/ns/id/%2E%2E%2E/history/turn-1.json",
        "global/history/turn-1.json",
        "session/%531/history/turn-1.json",
        "session/s1/history/turn-1.json",
        "session/s1/thread/t1/history/turn-1.json",
        "workflow/w/operator/o/history/turn-1.json",
    ]
    store.put("session/s1", "thread/t1/history/turn-1", entry("a key"))
    assert store.get("session/s1/thread/t1", "history/turn-1") != store.get("session/s1", "thread/t1/history/turn-1")
    assert listed(store, "session/s1") == ["history/turn-1", "thread/t1/history/turn-1"]


def test_operators_are_found_where_agents_were(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    version = store.put("operator/coder", "style", entry("terse"))
    (tmp_path / "operator").rename(tmp_path / "agent")
    assert store.get("operator/coder", "style") is not None
    assert listed(store, "operator/coder") == ["style"]
    assert store.put("operator/coder", "style", entry("kind"), expected=0) is None
    assert store.put("operator/coder", "style", entry("kind"), expected=version)
    assert files(tmp_path) == ["operator/coder/style.json"]
    (tmp_path / "operator").rename(tmp_path / "agent")
    assert store.drop("operator/coder", "style") is True
    assert files(tmp_path) == []


def test_what_others_put_there_is_left_alone(store: FsStore) -> None:
    store.put("session/s1", "a", entry(1))
    folder = store.root / "session" / "s1"
    for name in ("README.md", "a.json~", "notes.txt", ".DS_Store", "b.c.json.bak", "%zz.json"):
        (folder / name).write_text("not ours")
    assert listed(store, "session/s1") == ["a"]


# formats


@settings(max_examples=volume(60, 5_000), deadline=None)
@given(
    values,
    st.builds(
        StoredEntry,
        value=st.just(b"0"),
        version=st.integers(1, 2**62),
        written_at=st.integers(0, 2**50),
        expires_at=st.none() | st.integers(0, 2**50),
        tier=st.sampled_from([None, "hot"]),
        content_kind=st.none() | st.text(st.characters(exclude_categories=("Cs",))),
        salience=st.none() | st.floats(0, 1),
        words=st.none() | st.text(st.characters(exclude_categories=("Cs",))),
        vector=st.none() | st.binary(),
        applied=st.lists(st.text(st.characters(exclude_categories=("Cs",))), max_size=2).map(tuple),
    ),
    keys,
)
def test_both_formats_give_back_what_was_written(value: object, kept: StoredEntry, key: str) -> None:
    kept = msgspec.structs.replace(kept, value=msgspec.json.encode(value))
    for kind in file_format.SUFFIXES:
        assert file_format.decode_entry(kind, file_format.encode_entry(kind, key, kept)) == (key, kept)


def test_a_text_is_the_body_of_its_markdown(tmp_path: Path) -> None:
    store = FsStore(tmp_path, format="markdown")
    store.put("session/s1", "notes", entry("# Notes\n\n- one\n", tier="hot"))
    text = (tmp_path / "session/s1/notes.md").read_text()
    assert text.startswith('---\nkey: "notes"\nversion: ')
    assert text.endswith('tier: "hot"\nbody: "text"\n---\n# Notes\n\n- one\n\n')


def test_either_format_is_read_and_the_next_write_settles_it(tmp_path: Path) -> None:
    FsStore(tmp_path).put("global", "a", entry(1))
    store = FsStore(tmp_path, format="markdown")
    assert listed(store, "global") == ["a"]
    before = store.get("global", "a")
    assert before is not None
    left = (tmp_path / "global/a.json").read_bytes()
    assert store.put("global", "a", entry(2), expected=before.version)
    assert files(tmp_path) == ["global/a.md"]
    # Killed before it removed the old one: the newer counts, and goes last.
    (tmp_path / "global/a.json").write_bytes(left)
    assert FsStore(tmp_path).get("global", "a").value == b"2"  # type: ignore[union-attr]
    assert FsStore(tmp_path).drop("global", "a") is True
    assert files(tmp_path) == []


@pytest.mark.parametrize("left", [0, 1, 4, 9, 12, 40, -4, -1, None])
def test_a_damaged_file_is_named_and_can_be_deleted(left: int | None, store: FsStore) -> None:
    store.put("session/s1", "a", entry({"x": 1}))
    (path,) = (store.root / "session/s1").iterdir()
    whole = path.read_bytes()
    path.write_bytes(b"\xff\xfe" if left is None else whole[:-2] if left == -1 else whole[:left])
    for work in (
        lambda: store.get("session/s1", "a"),
        lambda: listed(store, "session/s1"),
        lambda: store.put("session/s1", "a", entry(1)),
    ):
        with pytest.raises(Corrupt, match=re.escape(str(path))):
            work()
    assert store.drop("session/s1", "a") is True
    assert store.put("session/s1", "a", entry(1))


def test_a_file_with_another_key_is_damaged(store: FsStore) -> None:
    store.put("session/s1", "a", entry(1))
    (path,) = (store.root / "session/s1").iterdir()
    path.rename(path.with_name(path.name.replace("a.", "b.")))
    with pytest.raises(Corrupt, match="it holds 'a'"):
        store.get("session/s1", "b")
