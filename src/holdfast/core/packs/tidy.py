"""Level light: remove meaningless blanks and cut the middle of long texts. Only text that is plainly prose is changed.

Prose is recognised by its sentences and not by what it lacks: code, data and logs come in more kinds than could be
listed. In doubt a text is not prose and stays as it is: better a text too long than one that no longer parses. These
rules decide how journaled packs are shown again, so later releases keep them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from holdfast.core.lazy import lazy_pattern
from holdfast.core.sessions.rounds import change_message
from holdfast.core.sessions.shorten import cut_text
from holdfast.core.wire.parts import is_parts
from holdfast.records.messages import Message

LIGHT: Final = "light"
"""The step of a recipe that names this level."""

_TRAILING_BLANKS: Final = lazy_pattern(r"(?m)(?<![ \t])[ \t]+$")
_BLANK_LINES: Final = lazy_pattern(r"\n{3,}")

CODE_FENCE: Final = lazy_pattern(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_STRUCTURE: Final = lazy_pattern(
    r"""
    ^(?: [ \t]+\S                              # an indented line
    | [\[{(<>|\#]                              # brackets, markup, tables, comments, prompts
    | diff\ --git\ |@@\ |---|\+\+\+\ |[+-]\S|[-*]\s                           # a diff, a list, a document of YAML
    | (?:import|from|def|class|function|const|let|var|package|return|end|fi|done|else|then)\b(?!,)
    | (?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|FROM|WHERE|WITH|VALUES)\b    # a query
    | (?i:select\b[^\n]*\bfrom|insert\ into|update\b[^\n]*\bset|delete\ from|(?:create|alter)\ table)\b
    | [\w.$"'\[\]-]+[ \t]*[-+*/|&^%:?]?=        # an assignment
    | [\w.]+\([^\n]*\)\s*$                     # a call
    | (?:echo|ECHO|print|PRINT|puts|REM|rem)\b | [\w.-]+[ \t]+["'][^\n]*["']\s*$             # a call without brackets
    | [^,\s]+,\S | [^;\s]+;\S )                # columns between commas
    | [{}\\\u2500-\u259f] | [;|]\s*$           # blocks, tables, and ends of statements
    | \t\S | [ ]{3}\S                          # columns of a table
    | [ ](?:--?[A-Za-z] | [=<>|+*/^;\#]+\s)    # options of a command, operators, comments after code
    | \"{3} | '{3} | << | \(\) | \$[A-Za-z_(] | && | \|\| | :: | </ | [=!-]= | [=-]>
    | :\d\d:\d\d | \b(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b          # a log
    """,
    re.MULTILINE | re.VERBOSE,
)
_KEY: Final = lazy_pattern(r"^[\w.-]+:(?:\s|$)", re.MULTILINE)
_MIN_KEYS: Final = 2
_LETTERS = r"[^\s\d_!-/:-@\[-`{-~’”“‘»«…]++"  # noqa: RUF001
_OPENING = r"[(\"'“‘«¿¡*_]*+"  # noqa: RUF001
_CLOSING = r"[.,;:!?…\"'”’»)*_]*+"  # noqa: RUF001
_WORD: Final = lazy_pattern(
    rf"(?<!\S)(?:{_OPENING}{_LETTERS}(?:['’/-]{_LETTERS})*+{_CLOSING}|[–—«»!?:-])(?!\S)"  # noqa: RUF001
)
_NUMBER: Final = lazy_pattern(rf"(?<!\S)[($€£]?\d[\d.,:/-]*+%?{_CLOSING}(?!\S)")
_START: Final = lazy_pattern(rf"{_OPENING}([^\W\d_])")
_END: Final = lazy_pattern(r"[.!?…؟।][\"'”’»)*_]*+(?=\s|\Z)")  # noqa: RUF001
_CJK: Final = lazy_pattern(r"[\u3040-\u30ff\u3400-\u9fff]")
_CJK_END: Final = lazy_pattern(r"[。！？][」』）]*+")  # noqa: RUF001
MIN_SENTENCE_PERCENT: Final = 80
"""The least percentage of lines that are sentences."""
_MIN_WORDS: Final = 6
_MIN_SENTENCE_WORDS, _MAX_SENTENCE_WORDS = 3, 60
"""Words of a sentence, on average."""
_RUNNING_WORDS: Final = 40
"""A text of at least this many words may stop in the middle of a sentence."""
_WRAPPED_CHARS: Final = 40
"""A line of at least this many characters may continue in the next one."""
_MIN_CJK_CHARS, _MAX_CJK_CHARS = 10, 120


def tidy_text(text: str) -> str:
    """Return prose without trailing blanks and with at most one empty line in a row, outside of code fences."""
    if "\n\n\n" not in text and " \n" not in text and "\t\n" not in text:
        return text
    kept, end = [], 0
    for fence in CODE_FENCE.finditer(text):
        kept += [_tidy_prose(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*kept, _tidy_prose(text[end:])])


def _tidy_prose(text: str) -> str:
    if not is_prose(text):
        return text
    return _BLANK_LINES.sub("\n\n", _TRAILING_BLANKS.sub("", text))


def lighten_text(text: str, most: int, name: str | None) -> tuple[str, int]:
    """Return a text at level light, and the number of characters left out."""
    shorter = tidy_text(text)
    if len(shorter) <= most or not is_prose(shorter):
        return shorter, 0
    return cut_text(shorter, most, name)


def is_light(message: Message, most: int) -> bool:
    """Return True if there is plainly nothing to do, as for most messages."""
    text = message.content
    if message.tool_results or not isinstance(text, str):
        return not message.tool_results and text is None
    if len(text) > most:
        return False
    return "\n" not in text or ("\n\n\n" not in text and " \n" not in text and "\t\n" not in text)


def lighten_message(message: Message, most: int, name: str | None) -> tuple[Message, int]:
    """Return a message at level light, and the number of characters left out; the same object if nothing changes."""
    content, left_out = _lighten_value(message.content, most, name)
    results = []
    for result in message.tool_results:
        value, missing = _lighten_value(result.result, most, name)
        left_out += missing
        results.append(result if value is result.result else msgspec.structs.replace(result, result=value))
    if content is message.content and all(map(operator.is_, results, message.tool_results)):
        return message, 0
    return change_message(message, content=content, tool_results=tuple(results)), left_out


def _lighten_value(value: Any, most: int, name: str | None) -> tuple[Any, int]:
    """Lighten a text or parts; other data is not touched. A value that does not change is the same object."""
    if isinstance(value, str):
        shorter, left_out = lighten_text(value, most, name)
        return (value, 0) if shorter == value else (shorter, left_out)
    if not is_parts(value):
        return value, 0
    shown, left_out = [], 0
    for part in value:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            shown.append(part)
            continue
        shorter, missing = lighten_text(text, most, name)
        left_out += missing
        shown.append(part if shorter == text else {**part, "text": shorter})
    return (value, 0) if all(map(operator.is_, shown, value)) else (shown, left_out)


def is_prose(text: str) -> bool:
    """Return True if a text is plainly prose: its blanks mean nothing, and a part can be read without the rest."""
    if CODE_FENCE.search(text) or _STRUCTURE.search(text) or len(_KEY.findall(text)) >= _MIN_KEYS:
        return False
    lines = sentences = 0
    for number, run in _join_lines(text):
        lines += number
        sentences += number if _has_sentences(run) else 0
    return lines > 0 and 100 * sentences >= MIN_SENTENCE_PERCENT * lines


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join lines with the lines that continue them; yield the number of lines and the joined text."""
    run: list[str] = []
    for line in map(str.strip, text.split("\n")):
        if line:
            run.append(line)
        if run and (len(line) < _WRAPPED_CHARS or _ends_sentence(line)):
            yield len(run), " ".join(run)
            run = []
    if run:
        yield len(run), " ".join(run)


def _ends_sentence(text: str) -> bool:
    last = text[-8:]
    return any(found.end() == len(last) for found in (*_END.finditer(last), *_CJK_END.finditer(last)))


def _has_sentences(run: str) -> bool:
    script = len(_CJK.findall(run))
    if 2 * script > len(run):
        ends = len(_CJK_END.findall(run))
        return (
            len(run) >= _MIN_CJK_CHARS and 0 < len(run) <= _MAX_CJK_CHARS * ends and (_ends_sentence(run) or ends > 1)
        )
    start = _START.match(run)
    if start is None or start[1].islower():
        return False
    tokens, words, ends = len(run.split()), len(_WORD.findall(run)), len(_END.findall(run))
    if tokens < _MIN_WORDS or not _MIN_SENTENCE_WORDS * ends <= tokens <= _MAX_SENTENCE_WORDS * ends:
        return False
    if 100 * words < 75 * tokens or 100 * (words + len(_NUMBER.findall(run))) < 90 * tokens:
        return False
    shouted = sum(map(str.isupper, run))
    return 2 * shouted < sum(map(str.isalpha, run)) and (_ends_sentence(run) or tokens >= _RUNNING_WORDS)
