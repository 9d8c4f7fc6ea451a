"""Golden packs: what models were sent by every release, sent again by this one, byte for byte."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Corrupt, Holdfast
from holdfast.core.packs import fences, segments
from holdfast.core.sessions import shorten
from holdfast.flow.packs import rebuild
from tests.golden.make import FOLDER
from tests.golden.packs import requests

RELEASES = sorted(path.name.removesuffix(".packs.gz") for path in FOLDER.glob("*.packs.gz"))
KINDS = {"brief", "breadcrumb", "summary", "conversation", "memory", "evidence"}
PARTS = {"system", "tools", "entry", "inputs", "note", "marker"}
EVIDENCE = {"event_ref", "tool_output", "artifact", "document", "url"}


def wanted(release: str) -> dict[str, Any]:
    """What every call was sent, by its id."""
    found: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{release}.packs.json.gz").read_bytes()))
    return found


def opened(release: str, url: str, folder: Path) -> Holdfast:
    lines = folder / "packs.jsonl"
    lines.write_bytes(gzip.decompress((FOLDER / f"{release}.packs.gz").read_bytes()))
    hf = holdfast.open(url, durability="fast")
    hf.journal.import_(lines)
    return hf


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    with opened(holdfast.__version__, "memory:", tmp_path_factory.mktemp("golden")) as hf:
        yield hf


def check(hf: Holdfast, release: str) -> None:
    for call, before in wanted(release).items():
        assert requests(hf.index.pack_at(call)) == before, call


def test_there_are_golden_packs_of_every_kind(moved: Holdfast) -> None:
    assert holdfast.__version__ in RELEASES
    packs = [moved.index.pack_at(call) for call in wanted(holdfast.__version__)]
    assert {segment.kind for pack in packs for segment in pack.segments} == KINDS
    pieces = {origin.part for pack in packs for segment in pack.segments for origin in segment.origins}
    assert {*PARTS, *EVIDENCE} <= pieces
    assert {pack.level.value for pack in packs} == {"none", "light", "moderate", "aggressive", "critical"}
    assert {pack.metadata.layout for pack in packs} == {"stable", "classic"}
    assert {pack.tokenizer for pack in packs} >= {"o200k_base", "cl100k_base", "estimate:1.6"}
    erased = [pack for pack in packs if pack.metadata.erased]
    assert 0 < len(erased) < len(packs)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_every_pack_of_every_release_is_sent_again_as_it_was(
    release: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(release, url, tmp_path) as hf:
        check(hf, release)
        assert hf.journal.verify().findings == ()


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (segments, "EARLIER_TEXT", "[{} messages before]"),
        (segments, "fence_text", lambda label, text, mark: f"{label}\n<text {mark}>\n{text}\n</text {mark}>"),
        (segments, "WORK_LABEL", "This is part of:"),
        (segments, "SUMMARY_LABEL", "Summary:"),
        (rebuild, "MEMORY_LABEL", "Memories:"),
        (rebuild, "evidence_label", lambda id, kind, trust: f"Evidence {id}:"),
        (shorten, "omission_marker", lambda left_out, name=None: f"[{left_out} left out]"),
        (fences, "_MARK_DIGITS", 12),
        (fences, "_FENCE_LIKE", re.compile("(nothing)")),
    ],
)
def test_a_release_that_renders_otherwise_is_caught(
    moved: Holdfast, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, planted: Any
) -> None:
    monkeypatch.setattr(where, name, planted)
    with pytest.raises((Corrupt, AssertionError)):
        check(moved, holdfast.__version__)
