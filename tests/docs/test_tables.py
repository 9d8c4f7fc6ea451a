"""Tables that are written by hand say what the code says: models, framing, formats, roles, parts, repairs."""

from __future__ import annotations

import inspect
import re

import pytest

import holdfast
from holdfast.core.sessions.tokens import ANTHROPIC, OPENAI, OTHER, Framing
from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.validate import PART_TYPES
from holdfast.flow.sessions.import_export import ALL_FORMATS
from holdfast.flow.sessions.sessions import STATUSES
from holdfast.records.messages import ROLES, Repair
from holdfast.records.settings import Settings

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


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def cells(page: str, first: str) -> list[str]:
    """The row of a table that begins with this cell, without it."""
    (found,) = [line for line in text(page).splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip(" `") for cell in found.strip("|").split("|")[1:]]


def numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


@pytest.mark.parametrize(
    "model", re.findall(r"^\| `([\w.-]+)` \| `(?:o200k|cl100k|estimate)", text("build/tokens.md"), re.MULTILINE)
)
def test_the_table_of_models_says_what_is_known(model: str) -> None:
    info = holdfast.models.model_info(model)
    assert info.known
    shown = numbers(info.window, info.reply_reserve, info.input_budget)
    assert cells("build/tokens.md", f"`{model}`") == [info.tokenizer, *shown]


def test_the_table_of_models_says_what_is_assumed_of_others() -> None:
    info = holdfast.models.model_info("a-model-that-nobody-knows")
    shown = numbers(info.window, info.reply_reserve, info.input_budget)
    assert cells("build/tokens.md", "any other") == [info.tokenizer, *shown]


@pytest.mark.parametrize(("what", "fields"), FRAMING.items(), ids=FRAMING)
def test_the_table_of_framing_has_the_numbers_that_are_counted_with(what: str, fields: tuple[str, ...]) -> None:
    def shown(framing: Framing) -> str:
        return "; ".join(numbers(*(getattr(framing, field) for field in fields)))

    assert cells("build/tokens.md", what) == [shown(OPENAI), shown(ANTHROPIC), shown(OTHER)]


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


@pytest.mark.parametrize(
    ("name", "form"), [("openai", openai_chat), ("responses", openai_responses), ("anthropic", anthropic)]
)
def test_every_normalisation_of_a_form_is_listed(name: str, form: object) -> None:
    (listed,) = re.findall(rf"(?ms)^\*\*{name}\*\*\n\n(.*?)\n\n", text("build/import-export.md"))
    said = re.findall(r"(?m)^- ", inspect.getdoc(form) or "")
    assert len(re.findall(r"(?m)^- ", listed)) == len(said), "say in docs/build/import-export.md what the module says"


@pytest.mark.parametrize("setting", ["message_bytes", "inline_text_bytes", "handover_attempts"])
def test_settings_of_conversations_are_explained_where_they_matter(setting: str) -> None:
    assert setting in Settings.__struct_fields__
    assert f"HOLDFAST_{setting.upper()}" in text("build/messages.md") + text("build/sessions.md")
