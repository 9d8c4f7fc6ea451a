"""Documents: plain text files below one folder. Nothing that is named, linked, planted or swapped leads out of it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Unavailable
from holdfast.errors import HoldfastError, InvalidValue, NotFound, Refused, TooLarge
from holdfast.extras import documents as module
from holdfast.extras.documents import DocumentRoot
from tests.scale import volume

SECRET = "the secret outside"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a document, beside a secret."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    root = tmp_path / "allowed"
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "a.md").write_text("# grüße\r\n", newline="")
    (root / "top.txt").write_bytes(b"\xef\xbb\xbftop")
    return root


def test_a_document_is_read_as_it_is_without_a_mark_at_its_beginning(folder: Path) -> None:
    root = DocumentRoot(folder)
    assert root.read("notes/a.md") == "# grüße\r\n"
    assert root.read("top.txt") == "top"
    assert str(folder.parent) not in repr(root)


def test_a_relative_root_stays_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    root = DocumentRoot("allowed")
    monkeypatch.chdir(folder / "notes")
    assert root.read("top.txt") == "top"


HOSTILE = [
    "", ".", "..", "/", "//", "../secret.txt", "notes/../../secret.txt", "notes/..", "./top.txt", "notes/./a.md",
    "notes//a.md", "notes/", "/top.txt", "/etc/passwd", "//etc/passwd", "~/x\0", "top.txt\0", "top.txt\n", "\x1b[2J",
    "..\\secret.txt", "notes\\a.md", "C:\\secret.txt", "C:/secret.txt", "C:secret.txt", "file:///etc/passwd", "\ud800",
    "a/" * 40 + "b", "x" * 2_000, "..%2fsecret.txt/..", "notes/../notes/a.md",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_a_path_that_is_not_plainly_below_the_folder_is_refused(path: str, folder: Path) -> None:
    with pytest.raises(InvalidValue):
        DocumentRoot(folder).read(path)


@pytest.mark.parametrize("path", [None, 7, b"top.txt", Path("top.txt"), ["top.txt"]])
def test_a_path_is_text(path: Any, folder: Path) -> None:
    with pytest.raises(InvalidValue):
        DocumentRoot(folder).read(path)


@pytest.mark.parametrize(
    "path", ["none.txt", "none/a.md", "top.txt/a", "notes/a.md/b", "x" * 300, "..%2fsecret.txt", "~"]
)
def test_what_is_not_there_is_not_found(path: str, folder: Path) -> None:
    with pytest.raises(NotFound) as raised:
        DocumentRoot(folder).read(path)
    assert str(folder) not in str(raised.value)


def link(place: Path, to: Path | str) -> Path:
    place.symlink_to(to)
    return place


LINKS: dict[str, Callable[[Path], object]] = {
    "file.txt": lambda root: link(root / "file.txt", root.parent / "secret.txt"),
    "relative.txt": lambda root: link(root / "relative.txt", "../secret.txt"),
    "folder/secret.txt": lambda root: link(root / "folder", root.parent / "outside"),
    "notes/deep/secret.txt": lambda root: link(root / "notes" / "deep", "../../outside"),
    "self.txt": lambda root: link(root / "self.txt", root / "self.txt"),
    "inside.txt": lambda root: link(root / "inside.txt", "top.txt"),
    "dangling.txt": lambda root: link(root / "dangling.txt", "nowhere"),
    "proc/cwd/secret.txt": lambda root: link(root / "proc", "/proc/self"),
}


@pytest.mark.parametrize("path", LINKS)
def test_no_link_is_followed_wherever_it_leads(path: str, folder: Path) -> None:
    LINKS[path](folder)
    with pytest.raises(InvalidValue, match="link") as raised:
        DocumentRoot(folder).read(path)
    assert str(folder.parent) not in str(raised.value)


def test_what_is_no_plain_file_is_refused_and_nobody_waits_for_it(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
        for name in ("pipe", "socket", "notes"):
            with pytest.raises(InvalidValue, match="plain file"):
                DocumentRoot(folder).read(name)


class Swapping:
    """`os` as the module sees it, with somebody who changes the folder after it was looked at."""

    def __init__(self, swap: Callable[[], None]) -> None:
        self._swap: Callable[[], None] | None = swap

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, **given: Any) -> int:
        if "dir_fd" in given and self._swap is not None:
            swap, self._swap = self._swap, None
            swap()
        return os.open(path, flags, **given)


def swapped(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> str:
    """Read a document that becomes something else between the look and the opening."""

    def swap() -> None:
        if what == "file":
            (folder / "top.txt").unlink()
            link(folder / "top.txt", "../secret.txt")
        elif what == "folder":
            (folder / "notes" / "a.md").unlink()
            (folder / "notes").rmdir()
            link(folder / "notes", "../outside")
        else:
            (folder / "top.txt").unlink()
            os.mkfifo(folder / "top.txt")

    root = DocumentRoot(folder)
    monkeypatch.setattr(module, "os", Swapping(swap))
    return root.read("notes/secret.txt" if what == "folder" else "top.txt")


@pytest.mark.parametrize("what", ["file", "folder", "pipe"])
def test_swapping_while_it_is_read_gains_nothing(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        swapped(folder, monkeypatch, what)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_an_opening_that_follows_links_is_noticed(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAFE_FLAGS", os.O_CLOEXEC)
    assert swapped(folder, monkeypatch, what) == SECRET


def test_a_look_that_misses_links_alone_does_not_lead_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two walls: without the first, the second still stands; without both, the escape is seen."""
    LINKS["file.txt"](folder)
    blind = SimpleNamespace(**{name: getattr(stat, name) for name in ("S_ISREG", "S_ISLNK")})
    blind.S_ISLNK, blind.S_ISREG = (lambda mode: False), (lambda mode: True)
    monkeypatch.setattr(module, "stat", blind)
    with pytest.raises(InvalidValue, match="link"):
        DocumentRoot(folder).read("file.txt")
    monkeypatch.setattr(module, "_SAFE_FLAGS", os.O_CLOEXEC)
    assert DocumentRoot(folder).read("file.txt") == SECRET


@settings(max_examples=volume(150, 10_000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "notes", "a.md", "top.txt", "out", "secret.txt", "/", "\\", "~"]), max_size=6
    )
)
def test_no_way_of_putting_names_together_reads_the_secret(folder: Path, names: list[str]) -> None:
    out = folder / "out"
    if not out.is_symlink():
        link(out, "../outside")
    try:
        found = DocumentRoot(folder).read("/".join(names))
    except HoldfastError:
        return
    assert found != SECRET


def test_size_is_limited_to_the_byte(folder: Path) -> None:
    (folder / "big.txt").write_text("x" * 100)
    assert DocumentRoot(folder, max_bytes=100).read("big.txt") == "x" * 100
    with pytest.raises(TooLarge, match="99"):
        DocumentRoot(folder, max_bytes=99).read("big.txt")
    with open(folder / "sparse.txt", "wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(TooLarge):
        DocumentRoot(folder).read("sparse.txt")


@pytest.mark.parametrize("body", [b"\xff\xfe\x00a", b"a\0b", b"\xed\xa0\x80", b"\x80", "ü".encode("latin-1")])
def test_what_is_not_text_is_refused(body: bytes, folder: Path) -> None:
    (folder / "binary").write_bytes(body)
    with pytest.raises(InvalidValue, match="UTF-8"):
        DocumentRoot(folder).read("binary")


@pytest.mark.parametrize(("number", "error"), [(5, Unavailable), (13, NotFound), (24, Unavailable), (40, InvalidValue)])
def test_what_the_system_says_is_an_error_of_ours_without_the_place(
    number: int, error: type[HoldfastError], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(module, "_open_name", fails)
    with pytest.raises(error, match=r"top\.txt") as raised:
        DocumentRoot(folder).read("top.txt")
    assert str(folder) not in str(raised.value)
    assert raised.value.__cause__ is None


def descriptors() -> int:
    """How many are open, where the system says so."""
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


def test_no_descriptor_is_left_open(folder: Path) -> None:
    root = DocumentRoot(folder)
    LINKS["file.txt"](folder)
    before = descriptors()
    for path in ("notes/a.md", "notes/none", "none/x", "file.txt", "notes", "top.txt/x") * 5:
        try:
            root.read(path)
        except HoldfastError:
            pass
    assert descriptors() == before


@pytest.mark.parametrize(
    ("path", "given"), [("", {}), (None, {}), (7, {}), (".", {"max_bytes": 0}), (".", {"max_bytes": True})]
)
def test_a_root_that_makes_no_sense_is_refused(path: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        DocumentRoot(path, **given)


def test_a_root_must_be_a_folder(folder: Path) -> None:
    for place in (folder / "none", folder / "top.txt"):
        with pytest.raises(NotFound, match="not a folder"):
            DocumentRoot(place)


def test_a_root_that_is_gone_is_said_so(folder: Path) -> None:
    root = DocumentRoot(folder / "notes")
    (folder / "notes" / "a.md").unlink()
    (folder / "notes").rmdir()
    with pytest.raises(NotFound):
        root.read("a.md")
