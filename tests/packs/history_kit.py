"""What tests of the tools for an agent have in common."""

from __future__ import annotations

import re
from typing import Any

from holdfast import Session
from holdfast.client.history_tools import HistoryTools
from holdfast.records.messages import Message

FENCED = re.compile(r"^([^\n]*):\n<data ([0-9]{9})>\n(.*?)\n</data \2>$", re.MULTILINE | re.DOTALL)
ONWARDS = re.compile(r"^… (?:(\d+) )?more(?: characters)?: expand (\S+)(?: with offset (\d+))?$", re.MULTILINE)


def by_fours(text: str) -> int:
    """A tokenizer that everybody can check."""
    return len(text) // 4 + 1


def tools_of(session: Session, **how: Any) -> HistoryTools:
    return HistoryTools(session._env, session._thread_stream, **how)


def texts(answer: str) -> list[str]:
    """What stands between marks."""
    return [text for _, _, text in FENCED.findall(answer)]


def name_of(message: Message) -> str:
    return f"m{message.version}"
