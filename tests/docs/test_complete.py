"""Everything that can be used is documented, and nothing else: commands, events, settings, errors, names, links."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
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
from tests.offenders import assert_none

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
"""Options of `holdfast.open` that are no port for callers to fill, or explained elsewhere."""
OBJECTS = {
    "Holdfast": Holdfast,
    "hf.journal": JournalView,
    "hf.index": IndexView,
    "Frame": Frame,
    "Session": Session,
    "session.packs": SessionPacks,
    "session.compaction": SessionCompaction,
    "session.details": SessionDetails,
    "ContextPack": ContextPack,
    "DualWrite": DualWrite,
    "hf.state": holdfast.types.StateStore,
    "State": holdfast.State,
    "hf.effects": Effects,
    "HistoryTools": holdfast.types.HistoryTools,
    "DocumentRoot": holdfast.DocumentRoot,
    "HttpsFetcher": holdfast.HttpsFetcher,
    "OpenTelemetry": holdfast.OpenTelemetry,
}
"""Objects with methods, by their heading in the Python reference."""
REQUESTS = (holdfast.types.OpenAIRequest, holdfast.types.ResponsesRequest, holdfast.types.AnthropicRequest)
LANGUAGES = {"python", "bash", "text", "sql", "toml", "json"}


@cache
def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(title: str, level: str = "##", page: str = "reference/python.md") -> str:
    """Return the text under a heading of the reference; empty unless the heading occurs exactly once."""
    found = re.findall(rf"(?ms)^{level} {re.escape(title)}\n(.*?)(?=^##|\Z)", text(page))
    return str(found[0]) if len(found) == 1 else ""


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


def test_every_command_and_option_is_documented() -> None:
    app, missing = make_app(), []
    for command in COMMANDS:
        written = section(f"holdfast {command}", page="reference/cli.md")
        names = [argument.name for argument in find_command(app, command).assemble_argument_collection()]
        missing += [] if written else [f"holdfast {command}: one section of its own"]
        missing += [f"holdfast {command}: {name}" for name in names if f"`{name}" not in written]
    assert_none(missing, "missing in docs/reference/cli.md (run: python docs/generate.py):")


def test_every_exit_code_is_documented() -> None:
    missing = [code for code in EXIT_CODES if f"\n| {code} | " not in text("reference/cli.md")]
    assert_none(missing, "exit codes without a row in docs/reference/cli.md (run: python docs/generate.py):")


def test_every_event_is_documented_with_its_kind_and_fields() -> None:
    sections = dict(re.findall(r"(?ms)^### `([^`]+)`\n(.*?)(?=^##|\Z)", text("reference/events.md")))
    assert sections.keys() == {*CATALOGUE, "app.…"}
    missing = []
    for row in CATALOGUE.values():
        parts = [part for part in (row.facts, row.content) if part is not None]
        fields = [field.name for part in parts for field in msgspec.structs.fields(part) if field.name != "artifacts"]
        wanted = [f"*{row.kind} · schema {row.schema} · ", *(f"| `{field}`" for field in fields)]
        missing += [f"{row.name}: {words}" for words in wanted if words not in sections[row.name]]
    assert_none(missing, "missing in docs/reference/events.md (run: python docs/generate.py):")


def test_every_setting_is_documented() -> None:
    fields = msgspec.structs.fields(holdfast.Settings)
    rows = [f"| `{field.name}` | `HOLDFAST_{field.name.upper()}` | {field.default:,} |" for field in fields]
    missing = [row for row in rows if row not in text("reference/settings.md")]
    assert_none(missing, "missing in docs/reference/settings.md (run: python docs/generate.py):")


def test_every_error_is_documented_and_public() -> None:
    names = [kind.__name__ for kind in vars(errors).values() if isinstance(kind, type)]
    modules, page = section("Modules"), text("reference/errors.md")
    missing = [f"{name}: under Modules in docs/reference/python.md" for name in names if f"`{name}`" not in modules]
    missing += [f"{name}: a row in docs/reference/errors.md" for name in names if f"| `{name}` |" not in page]
    drawn = [name for name in names if re.search(rf"(^|─ ){name}\b", page, re.MULTILINE)]
    missing += [f"{name}: its place in the tree of docs/reference/errors.md" for name in names if name not in drawn]
    assert_none(missing, "errors that lack something in the reference (run: python docs/generate.py):")


def test_every_public_name_is_documented() -> None:
    names = sorted({public for _, public in NAMES} | {"open"})
    missing = [public for public in names if not re.search(rf"\b{public}\b", text("reference/python.md"))]
    assert_none(missing, "public names that docs/reference/python.md does not mention; give each a row or a section:")


def test_every_method_is_documented_with_its_parameters() -> None:
    module = generator()
    missing = [
        f"{title}: {problem}" for title, kind in OBJECTS.items() for problem in undocumented(module, title, kind)
    ]
    assert_none(missing, "missing in docs/reference/python.md (run: python docs/generate.py):")


def undocumented(module: ModuleType, title: str, kind: type) -> Iterator[str]:
    """Yield each public member of a class that has no row, or whose row has other parameters."""
    written = section(title)
    if not written:
        yield "one section of its own"
    for member, found in module.members(kind):
        if member.startswith("_"):
            continue
        if not inspect.isfunction(found):
            if f"| `{member}` | " not in written:
                yield f"a row for {member}"
            continue
        signatures = re.findall(rf"^\| `{member}\(([^`]*)\)` \| \S", written, re.MULTILINE)
        names = [name for name in inspect.signature(found).parameters if name != "self"]
        if [re.findall(r"(?:^|, )\**(\w+)", signature) for signature in signatures] != [names]:
            yield f"one row for {member}({', '.join(names)})"


def test_every_field_of_a_public_record_is_documented() -> None:
    missing = []
    for record in RECORDS:
        written = section(record.__name__, "###")
        properties = [name for name, found in vars(record).items() if isinstance(found, property)]
        fields = [*(field.name for field in msgspec.structs.fields(record)), *properties]
        methods = [method for method, found in vars(record).items() if inspect.isfunction(found) and method[0] != "_"]
        rows = [*(f"| `{field}` |" for field in fields), *(f"| `{method}(" for method in methods)]
        missing += [] if written else [f"{record.__name__}: one section of its own"]
        missing += [f"{record.__name__}: {row}" for row in rows if row not in written]
    assert_none(missing, "missing in docs/reference/python.md (run: python docs/generate.py):")


def test_every_key_of_a_request_is_documented_and_whether_it_may_be_missing() -> None:
    missing = []
    for request in REQUESTS:
        written = section(request.__name__, "###")
        missing += [] if written else [f"{request.__name__}: one section of its own"]
        for key, hint in get_type_hints(request, include_extras=True).items():
            note = "may be missing" if get_origin(hint) is NotRequired else ""
            if not re.search(rf"^\| `{key}` \| [^|]+ \| {note}\s*\|$", written, re.MULTILINE):
                missing.append(f"{request.__name__}: {key} {note}")
    assert_none(missing, "keys without their row in docs/reference/python.md (run: python docs/generate.py):")


def test_every_name_of_compaction_is_documented_with_its_numbers() -> None:
    written, told, levels = section("Compaction"), text("build/compaction.md"), section("CompactionLevel", "###")
    names = (*STRATEGIES, *PRESETS, *POLICY_PRIORITY)
    missing = [f"{named}: in docs/reference/python.md" for named in names if f"`{named}`" not in written]
    missing += [f"{named}: a row in docs/build/compaction.md" for named in names if f"| `{named}` |" not in told]
    for preset, config in PRESETS.items():
        for field in msgspec.structs.fields(config):
            value = getattr(config, field.name)
            if value != field.default and f"{field.name}={value!r}" not in written:
                missing.append(f"{preset}: {field.name}={value!r} in docs/reference/python.md")
    rows = [f"| `CompactionLevel.{level.name}` | `{level.value}` |" for level in holdfast.compaction.CompactionLevel]
    missing += [f"{row} in docs/reference/python.md" for row in rows if row not in levels]
    assert_none(missing, "say what each does, with its numbers (docs/generate.py writes the reference):")


def test_everything_that_a_client_may_be_given_is_explained() -> None:
    opening = section("Opening")
    env = [name for name in OpenOptions.__annotations__ if name not in BESIDE]
    missing = [port for port in env if f"\n- `{port}`: " not in opening]
    assert_none(missing, "options of holdfast.open without a line under Opening in docs/reference/python.md:")


def test_every_envelope_field_is_documented() -> None:
    fields = [field.name for field in msgspec.structs.fields(holdfast.types.Event)]
    missing = [field for field in fields if f"`{field}`" not in text("internals/journal.md")]
    assert_none(missing, "fields of an event that docs/internals/journal.md does not explain:")


def test_every_relative_link_leads_somewhere() -> None:
    broken = [f"{name(page)}: {link}" for page in PAGES for link in links(page) if not leads_somewhere(page, link)]
    assert_none(broken, "links to a file or heading that is not there; name one that is:")


def leads_somewhere(page: Path, link: str) -> bool:
    """Return True for a link to another site, and for one to a file of the project and a heading that it has."""
    target, _, anchor = link.partition("#")
    if "://" in target or target.startswith("mailto:"):
        return True
    found = (page.parent / target).resolve() if target else page
    return found.is_file() and found.is_relative_to(ROOT) and (not anchor or anchor in anchors(found))


def test_a_page_speaks_of_the_project_alone() -> None:
    wrong = []
    for page in PAGES:
        written = page.read_text(encoding="utf-8")
        if not written.startswith(("# ", "<!-- Written by")):
            wrong.append(f"{name(page)}: begins without a title")
        paths = re.findall(r"(?<![\w/:.>-])/\w+/\w+", written)
        wrong += [f"{name(page)}: {path} is a path of somebody's machine" for path in paths]
        outside = re.findall(r"\bissue \d|(?<!\w)#\d+\b|localhost:\d", written)
        wrong += [f"{name(page)}: {words} means nothing to a reader elsewhere" for words in outside]
    assert_none(wrong, "begin pages with a title, and take out what only its writer can follow:")


def test_blocks_name_a_language_that_is_run_or_plainly_text() -> None:
    found = [(page, block) for page in PAGES for block in blocks(page) if block.language not in LANGUAGES]
    wrong = [f"{name(page)}:{block.line - 1}: {block.language or 'no language'}" for page, block in found]
    assert_none(wrong, f"blocks in another language than {', '.join(sorted(LANGUAGES))}; use `text` for plain text:")


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    missing = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - listed
    assert_none(sorted(missing), "pages that the navigation lacks; add them to mkdocs.yml:")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis.com" not in built
    assert not (tmp_path / "site" / "generate.py").exists()


# advice


MEMBERS = {
    "hf": Holdfast,
    "hf.index": IndexView,
    "hf.journal": JournalView,
    "hf.effects": Effects,
    "session": Session,
    "session.packs": SessionPacks,
    "session.compaction": SessionCompaction,
    "session.details": SessionDetails,
    "turn": holdfast.Turn,
    "frame": Frame,
}
CALLED = re.compile(rf"(?<![\w.])({'|'.join(sorted(map(re.escape, MEMBERS), key=len, reverse=True))})\.([a-z]\w*)\(")
NAMED = re.compile(r"(?<![\w.])holdfast\.(?!(?:pack|call|frame|tenant)\b)([A-Za-z]\w*)(?:\.([A-Za-z]\w*))?")
"""Attributes of spans (`holdfast.pack.tokens`) are no names in Python."""


def missing_in(text: str) -> Iterator[str]:
    """Yield what a text tells people to call and there is not."""
    for owner, member in CALLED.findall(text):
        if not hasattr(MEMBERS[owner], member):
            yield f"{owner}.{member}(…)"
    for first, second in NAMED.findall(text):
        module = importlib.util.find_spec(f"holdfast.{first}")
        found = importlib.import_module(f"holdfast.{first}") if module else getattr(holdfast, first, None)
        beyond = second and inspect.ismodule(found) and not hasattr(found, second)
        if found is None or (beyond and not importlib.util.find_spec(f"holdfast.{first}.{second}")):
            yield f"holdfast.{first}" + (f".{second}" if second else "")


def test_messages_and_pages_name_only_what_there_is() -> None:
    """A message that says what to do must not name something that has moved."""
    sources = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    told = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    told += [(name(page), page.read_text(encoding="utf-8")) for page in PAGES if "reference" not in page.parts]
    assert list(missing_in("Use session.summaries() or holdfast.Rule.")) == ["session.summaries(…)", "holdfast.Rule"]
    assert_none([f"{where}: {one}" for where, text in told for one in missing_in(text)], "Name what is there today:")
