"""Tables that are written by hand say what the code says: models, framing, formats, roles, parts, repairs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import holdfast
from holdfast.client.effects import Effects
from holdfast.client.index import IndexView
from holdfast.client.journal import JournalView
from holdfast.client.session_views import SessionCompaction, SessionPacks
from holdfast.core.sessions.tokens import ANTHROPIC, OPENAI, OTHER
from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.parts import PART_TYPES
from holdfast.flow.sessions.import_export import ALL_FORMATS
from holdfast.flow.sessions.sessions import STATUSES
from holdfast.records.catalogue import CATALOGUE
from holdfast.records.messages import ROLES, Repair
from holdfast.records.settings import Settings
from tests.offenders import assert_none

from .pages import DOCS

FRAMING = {
    "a message": ("message",),
    "a tool call, beside its name and arguments": ("call",),
    "calls made together": ("parallel",),
    "a tool result, beside its text": ("result",),
    "tools at all; each of them beside its JSON": ("tools", "tool"),
    "an image, at the most": ("image",),
    "what leads the reply": ("reply",),
}


SOURCE = Path(holdfast.__file__).parent
OWNERS = {
    "hf": holdfast.Holdfast,
    "hf.index": IndexView,
    "hf.journal": JournalView,
    "hf.effects": Effects,
    "session": holdfast.Session,
    "session.packs": SessionPacks,
    "session.compaction": SessionCompaction,
    "frame": holdfast.Frame,
    "pack": holdfast.ContextPack,
    "holdfast": holdfast,
    "Scope": holdfast.Scope,
}


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def cells(page: str, first: str) -> list[str]:
    """Return the row of a table that begins with this cell, without it; empty unless there is exactly one."""
    rows = [line for line in text(page).splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip(" `") for cell in rows[0].strip("|").split("|")[1:]] if len(rows) == 1 else []


def numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def test_the_table_of_models_says_what_is_known() -> None:
    models = re.findall(r"^\| `([\w.-]+)` \| `(?:o200k|cl100k|estimate)", text("build/tokens.md"), re.MULTILINE)
    assert models, "the table of models in docs/build/tokens.md is gone"
    wrong = []
    for model in models:
        info = holdfast.models.model_info(model)
        wanted = [info.tokenizer, *numbers(info.window, info.reply_reserve, info.input_budget)]
        if not info.known:
            wrong.append(f"{model}: not known to holdfast.models")
        if cells("build/tokens.md", f"`{model}`") != wanted:
            wrong.append(f"{model}: one row with {' | '.join(wanted)}")
    assert_none(wrong, "correct the table of models in docs/build/tokens.md:")


def test_the_table_of_models_says_what_is_assumed_of_others() -> None:
    info = holdfast.models.model_info("a-model-that-nobody-knows")
    shown = numbers(info.window, info.reply_reserve, info.input_budget)
    assert cells("build/tokens.md", "any other") == [info.tokenizer, *shown]


def test_the_table_of_framing_has_the_numbers_that_are_counted_with() -> None:
    wrong = []
    for row, fields in FRAMING.items():
        framings = (OPENAI, ANTHROPIC, OTHER)
        wanted = ["; ".join(numbers(*(getattr(framing, field) for field in fields))) for framing in framings]
        if cells("build/tokens.md", row) != wanted:
            wrong.append(f"{row}: one row with {' | '.join(wanted)}")
    assert_none(wrong, "correct the table of framing in docs/build/tokens.md:")


def find_missing_names(page: str) -> list[str]:
    """Return the names that the rows of a page call ours and present, and that are nowhere in the code."""
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]
    known = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    known |= {f"HOLDFAST_{name.upper()}" for name in Settings.__struct_fields__}
    wrong = []
    for ours in re.findall(r"(?m)^\| .* \| (.*) \| now \|$", page):
        for name in re.findall(r"`([^`]+)`", ours):
            owner, _, member = name.partition("(")[0].rpartition(".")
            if "/" in name and ":" not in name:
                exists = "<" in name or (SOURCE / name).exists()
            elif owner in OWNERS:
                exists = hasattr(OWNERS[owner], member) or name in CATALOGUE
            else:
                exists = set(re.findall(r"[A-Za-z_]\w*", name)) <= known
            wrong += [] if exists else [name]
    return wrong


def test_names_that_correspond_now_exist() -> None:
    page = text("internals/correspondence.md")
    assert len(re.findall(r"(?m) \| now \|$", page)) > 150
    assert_none(find_missing_names(page), "names in docs/internals/correspondence.md that are not in the code:")


def test_a_name_that_does_not_exist_is_found() -> None:
    rows = ["`hf.tasks`", "`core/step`", "`session.packs.nothing(role)`", "`TaskContextMap`, `Scope`"]
    page = "".join(f"| theirs | {row} | now |\n" for row in rows)
    missing = ["hf.tasks", "core/step", "session.packs.nothing(role)", "TaskContextMap"]
    assert find_missing_names(page) == missing
    assert find_missing_names(page.replace("now", "later")) == []


def test_every_role_part_and_status_is_explained() -> None:
    messages = text("build/messages.md")
    assert [role for role in ROLES if f"`{role}`" not in messages] == []
    assert [part for part in PART_TYPES if not re.search(rf"^\| [^|]*`{part}`", messages, re.MULTILINE)] == []
    assert [status for status in STATUSES if f"\n| {status} | " not in text("build/sessions.md")] == []


def test_every_format_and_every_repair_is_explained() -> None:
    page = text("build/import-export.md")
    assert [format for format in ALL_FORMATS if f"`{format}`" not in page or f"**{format}**" not in page] == []
    known = re.findall(
        r"\b[a-z]+_[a-z]+\b|\bmalformed\b", inspect.getsource(Repair).split("problem: str")[1].split("done:")[0]
    )
    assert len(known) == 9
    assert [problem for problem in known if f"\n| `{problem}` | " not in page] == []


def test_every_normalisation_of_a_form_is_listed() -> None:
    wrong = []
    for name, form in (("openai", openai_chat), ("responses", openai_responses), ("anthropic", anthropic)):
        lists = re.findall(rf"(?ms)^\*\*{name}\*\*\n\n(.*?)\n\n", text("build/import-export.md"))
        listed = [len(re.findall(r"(?m)^- ", one)) for one in lists]
        wanted = len(re.findall(r"(?m)^- ", inspect.getdoc(form) or ""))
        if listed != [wanted]:
            wrong.append(f"{name}: one list of {wanted}, but there are {listed}")
    assert_none(wrong, "say in docs/build/import-export.md what the docstring of the module says:")


def test_settings_of_conversations_are_explained_where_they_matter() -> None:
    settings = {"message_bytes", "inline_text_bytes", "handover_attempts"}
    assert settings <= set(Settings.__struct_fields__)
    told = text("build/messages.md") + text("build/sessions.md")
    missing = [name for setting in sorted(settings) if (name := f"HOLDFAST_{setting.upper()}") not in told]
    assert_none(missing, "settings that neither docs/build/messages.md nor docs/build/sessions.md explains:")
