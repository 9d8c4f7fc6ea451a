"""Opening a store: what is no store is refused by name, with nothing made and no secret shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.client.state import open_store
from holdfast.errors import HoldfastError, InvalidValue, Unsupported
from holdfast.records.settings import Settings

NO_STORES = (
    *("postgres://user:secret@host/db", "http://user:secret@host", "file:///x", "memory", "fs", "", "://", "FS:///x"),
    *("mem:", "c:\\data", "relative/path.db", "/absolute.db", "s3://bucket", "holdfast:"),
)
NO_PLACES = (
    *(
        "memory:x",
        "memory://",
        "memory:///x",
        "fs:",
        "fs://",
        "fs:///",
        "fs:////",
        "fs://host/x",
        "fs://user:secret@h/x",
    ),
    *("fs:///x?y=1", "fs:///x#y", "fs:///a%00b", "fs:///a\0b", "fs:///a\nb", "fs:///%ff", "fs://[", "fs:///\ud800"),
    *("sqlite:", "sqlite:///", "sqlite://user:secret@host/x", "sqlite:///x?mode=memory", "sqlite:///\x7f", "cozo:///"),
    *("cozo://host/x", "cozo:///x#y"),
)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("url", NO_STORES)
def test_what_names_no_technology_is_refused(url: str, nowhere: Path) -> None:
    with pytest.raises((Unsupported, InvalidValue)) as refused:
        open_store(url)
    assert "redis://" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("url", NO_PLACES, ids=ascii)
def test_what_names_no_place_is_refused(url: str, nowhere: Path) -> None:
    with pytest.raises(InvalidValue) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(
    ("form", "absolute"), [("fs:{}", True), ("fs:///{}", True), ("fs:made", False), ("fs:///made", False)]
)
def test_a_path_is_absolute_if_it_is_written_so(form: str, absolute: bool, nowhere: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    with open_store(form.format(place)) as store:
        store("user/1").write("k", 1)
    assert place.is_dir() == absolute
    assert (nowhere / "made").is_dir() == (not absolute)


@pytest.mark.parametrize("url", [None, 5, b"memory:", b"fs:///x", ["memory:"], object()])
def test_what_is_no_url_is_refused(url: Any) -> None:
    with pytest.raises(InvalidValue, match="URL"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory:", {"format": "json"}),
        ("memory:", {"prefix": "x"}),
        ("memory:", {"durability": "full"}),
        ("memory:", {"most": 0}),
        ("memory:", {"most": -1}),
        ("memory:", {"most": True}),
        ("memory:", {"most": 1.5}),
        ("memory:", {"most": 10**5_000, "search": "yes"}),
        ("memory:", {"search": "no"}),
        ("memory:", {"search": 1}),
        ("memory:", {"settings": {"nesting": 3}}),
        ("memory:", {"settings": Settings(event_bytes=0)}),
        ("memory:", {"embedder": 5}),
        ("fs:///x", {"format": "xml"}),
        ("fs:///x", {"format": 5}),
        ("fs:///x", {"format": ["json"]}),
        ("fs:///x", {"most": 5}),
        ("fs:///x", {"durability": "full"}),
        ("sqlite:///x.db", {"durability": "lazy"}),
        ("sqlite:///x.db", {"search": True}),
        ("sqlite:///x.db", {"embedder": 5}),
        ("redis://localhost/0", {"format": "json"}),
        ("cozo:", {"prefix": "x"}),
    ],
)
def test_options_that_a_store_does_not_take_are_refused(url: str, options: dict[str, Any], nowhere: Path) -> None:
    with pytest.raises(InvalidValue):
        open_store(url, **options)
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["fs:///taken", "sqlite:///taken", "cozo:///taken", "sqlite:///folder", "cozo:///folder"]
)
def test_a_place_that_holds_something_else_is_refused_and_left_alone(url: str, nowhere: Path) -> None:
    taken = nowhere / "taken"
    taken.write_bytes(b"somebody's notes\n" * 300)
    (nowhere / "folder").mkdir()
    with pytest.raises(HoldfastError):
        open_store(url)
    assert taken.read_bytes() == b"somebody's notes\n" * 300
    assert list((nowhere / "folder").iterdir()) == []


@pytest.mark.parametrize("scheme", ["fs", "sqlite", "cozo"])
def test_a_place_may_be_relative_absolute_or_percent_encoded(scheme: str, nowhere: Path) -> None:
    for url, path in (
        (f"{scheme}:///one", "one"),
        (f"{scheme}:///{nowhere}/two", "two"),
        (f"{scheme}:///a%20%23%3F%25b", "a #?%b"),
        (f"{scheme}:///%E4%B8%96", "世"),
    ):
        with open_store(url) as store:
            store("user/42").write("k", path)
        assert (nowhere / path).exists()
        with open_store(url) as store:
            assert store("user/42").read("k") == path
