"""Everything that can be used is documented, and nothing else: commands, events, settings, errors, names, links."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NotRequired, get_origin, get_type_hints

import msgspec
import pytest

import holdfast
from holdfast import errors
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import EXIT_CODES, find_command, make_app
from holdfast.client.effects import Effects
from holdfast.client.frame import Frame
from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from holdfast.client.journal import JournalView
from holdfast.client.options import OpenOptions
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
from holdfast.extras.dual_write import DualWrite
from holdfast.records.catalogue import CATALOGUE
from holdfast.records.compaction import POLICY_PRIORITY, PRESETS, STRATEGIES

from .pages import DOCS, ROOT, anchors, blocks, links, name, pages

PAGES = pages()
NAMES = [
    (module, public)
    for module in (holdfast, holdfast.compaction, holdfast.effects, holdfast.models, holdfast.types)
    for public in module.__all__
]
PUBLIC = [getattr(module, public) for module, public in NAMES]
STRUCTS = [found for found in PUBLIC if isinstance(found, type) and issubclass(found, msgspec.Struct)]
RECORDS = [record for record in STRUCTS if record not in (holdfast.Scope, holdfast.Settings)]
"""Records that are given to callers; scopes and settings have sections of their own."""
BESIDE = {"url", "durability", "settings", "clock", "ids"}
"""What `holdfast.open` takes that is no port for callers to fill, or explained elsewhere."""


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(title: str, level: str = "##") -> str:
    """What the Python reference says under a heading."""
    (found,) = re.findall(rf"(?ms)^{level} {re.escape(title)}\n(.*?)(?=^##|\Z)", text("reference/python.md"))
    return str(found)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_says_what_the_code_says() -> None:
    assert generator().outdated() == [], "run: python docs/generate.py"


def test_an_outdated_reference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = generator()
    monkeypatch.setattr(module, "REFERENCE", tmp_path)
    assert module.main(["--check"]) == 1
    assert module.main([]) == 0
    assert module.main(["--check"]) == 0
    (tmp_path / "events.md").write_text("changed by hand")
    assert module.outdated() == ["events.md"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    (section,) = re.findall(
        rf"^## holdfast {command}\n(.*?)(?=^## |\Z)", text("reference/cli.md"), re.MULTILINE | re.DOTALL
    )
    for argument in find_command(make_app(), command).assemble_argument_collection():
        assert f"`{argument.name}" in section


def test_every_exit_code_is_documented() -> None:
    for code in EXIT_CODES:
        assert f"\n| {code} | " in text("reference/cli.md")


def test_every_event_is_documented_with_its_kind_and_fields() -> None:
    sections = dict(re.findall(r"(?ms)^### `([^`]+)`\n(.*?)(?=^##|\Z)", text("reference/events.md")))
    assert sections.keys() == {*CATALOGUE, "app.…"}
    for row in CATALOGUE.values():
        section = sections[row.name]
        assert f"*{row.kind} · schema {row.schema} · " in section
        for part in (row.facts, row.content):
            for field in () if part is None else msgspec.structs.fields(part):
                assert field.name == "artifacts" or f"| `{field.name}`" in section


def test_every_setting_is_documented() -> None:
    for field in msgspec.structs.fields(holdfast.Settings):
        assert f"| `{field.name}` | `HOLDFAST_{field.name.upper()}` | {field.default:,} |" in text(
            "reference/settings.md"
        )


def test_every_error_is_documented_and_public() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for kind in kinds:
        assert f"`{kind.__name__}`" in section("Modules")
        assert f"| `{kind.__name__}` |" in text("reference/errors.md")
        assert re.search(rf"(^|─ ){kind.__name__}\b", text("reference/errors.md"), re.MULTILINE), "missing in the tree"


@pytest.mark.parametrize("public", sorted({public for _, public in NAMES} | {"open"}))
def test_every_public_name_is_documented(public: str) -> None:
    assert re.search(rf"\b{public}\b", text("reference/python.md"))


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Holdfast", Holdfast),
        ("hf.journal", JournalView),
        ("hf.index", IndexView),
        ("Frame", Frame),
        ("Session", Session),
        ("session.packs", SessionPacks),
        ("session.compaction", SessionCompaction),
        ("session.details", SessionDetails),
        ("ContextPack", ContextPack),
        ("DualWrite", DualWrite),
        ("hf.state", holdfast.types.StateStore),
        ("State", holdfast.State),
        ("hf.effects", Effects),
        ("HistoryTools", holdfast.types.HistoryTools),
        ("DocumentRoot", holdfast.DocumentRoot),
        ("HttpsFetcher", holdfast.HttpsFetcher),
        ("OpenTelemetry", holdfast.OpenTelemetry),
    ],
)
def test_every_method_is_documented_with_its_parameters(title: str, kind: type) -> None:
    written = section(title)
    for member, found in generator().members(kind):
        if member.startswith("_"):
            continue
        if not inspect.isfunction(found):
            assert f"| `{member}` | " in written
            continue
        (signature,) = re.findall(rf"^\| `{member}\(([^`]*)\)` \| \S", written, re.MULTILINE)
        names = [name for name in inspect.signature(found).parameters if name != "self"]
        assert re.findall(r"(?:^|, )\**(\w+)", signature) == names


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_a_public_record_is_documented(record: type) -> None:
    written = section(record.__name__, "###")
    properties = [name for name, found in vars(record).items() if isinstance(found, property)]
    for field in (*(field.name for field in msgspec.structs.fields(record)), *properties):
        assert f"| `{field}` |" in written
    methods = [method for method, found in vars(record).items() if inspect.isfunction(found) and method[0] != "_"]
    assert all(f"| `{method}(" in written for method in methods)


@pytest.mark.parametrize(
    "request_", [holdfast.types.OpenAIRequest, holdfast.types.ResponsesRequest, holdfast.types.AnthropicRequest]
)
def test_every_key_of_a_request_is_documented_and_whether_it_may_be_missing(request_: type) -> None:
    written = section(request_.__name__, "###")
    for key, hint in get_type_hints(request_, include_extras=True).items():
        missing = "may be missing" if get_origin(hint) is NotRequired else ""
        assert re.search(rf"^\| `{key}` \| [^|]+ \| {missing}\s*\|$", written, re.MULTILINE)


def test_every_name_of_compaction_is_documented_with_its_numbers() -> None:
    written, told = section("Compaction"), text("build/compaction.md")
    for named in (*STRATEGIES, *PRESETS, *POLICY_PRIORITY):
        assert f"`{named}`" in written
        assert f"| `{named}` |" in told, "say what it does"
    for config in PRESETS.values():
        for field in msgspec.structs.fields(config):
            value = getattr(config, field.name)
            assert value == field.default or f"{field.name}={value!r}" in written
    for level in holdfast.compaction.CompactionLevel:
        assert f"| `CompactionLevel.{level.name}` | `{level.value}` |" in section("CompactionLevel", "###")


def test_everything_that_a_client_may_be_given_is_explained() -> None:
    env = [name for name in OpenOptions.__annotations__ if name not in BESIDE]
    opening = section("Opening")
    assert [port for port in env if f"\n- `{port}`: " not in opening] == []


def test_every_envelope_field_is_documented() -> None:
    envelope = text("internals/journal.md")
    for field in msgspec.structs.fields(holdfast.types.Event):
        assert f"`{field.name}`" in envelope


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.is_file(), link
        assert found.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_speaks_of_the_project_alone(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written.startswith(("# ", "<!-- Written by"))
    assert not re.search(r"(?<![\w/:.>-])/\w+/\w+", written), "a path of somebody's machine"
    assert not re.search(r"\bissue \d|(?<!\w)#\d+\b|localhost:\d", written)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_name_a_language_that_is_run_or_plainly_text(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "bash", "text", "sql", "toml", "json"}


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} <= listed, "add it to mkdocs.yml"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis.com" not in built
    assert not (tmp_path / "site" / "generate.py").exists()
