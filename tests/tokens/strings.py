"""Generated strings in which tokenizers go wrong: mixtures of scripts, controls, runs, digits and special spellings."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from string import ascii_letters, digits

from tests.tokens.samples import CODE, LANGUAGES, SCRIPT

SPECIAL = (
    "<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|channel|>",
    "<|message|>", "<|return|>", "<|think|>", "<|/think|>", "<|memory|>", "<|tool_call|>", "<|reserved_200000|>",
    "<|endoftext", "|>", "<|", "< |endoftext| >", "<|endoftext|", "<s>", "</s>", "[INST]",
)  # fmt: skip
EMOJI = ("😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "☕️", "🤷🏻‍♀️", "\u200d", "\ufe0f")
SPACES = (" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u200b", " \n ", "\x0b", "\x85")
WORDS = (
    "the",
    "don't",
    "I'LL",
    "they've",
    "naïve",
    "Straße",
    "ΑΒΓ",
    "İstanbul",
    "re-use",
    "snake_case",
    "CamelCase",
    "v2",
)


def _characters(r: random.Random) -> str:
    return "".join(
        chr(r.choice((r.randrange(0xD800), r.randrange(0xE000, 0x110000)))) for _ in range(r.randrange(1, 12))
    )


def _slice(r: random.Random, texts: tuple[str, ...]) -> str:
    text = r.choice(texts)
    start = r.randrange(len(text))
    return text[start : start + r.randrange(1, 60)]


PIECES: tuple[Callable[[random.Random], str], ...] = (
    lambda r: r.choice(SPECIAL),
    lambda r: r.choice(EMOJI) * r.randrange(1, 4),
    lambda r: r.choice(SPACES) * r.randrange(1, 9),
    lambda r: r.choice(WORDS) + r.choice((" ", "", ".", "'s ")),
    lambda r: str(r.getrandbits(r.randrange(1, 80))),
    lambda r: "".join(chr(r.randrange(0x4E00, 0x9FFF)) for _ in range(r.randrange(1, 12))),
    lambda r: "".join(chr(r.randrange(0x20)) for _ in range(r.randrange(1, 6))),
    lambda r: "".join(r.choices("!?.,;:/\\\"'(){}[]<>|@#$%^&*-_=+~`", k=r.randrange(1, 12))),
    lambda r: "".join(r.choices(ascii_letters + digits, k=r.randrange(1, 40))),
    lambda r: "e" + "".join(chr(r.randrange(0x300, 0x370)) for _ in range(r.randrange(1, 5))),
    lambda r: _slice(r, tuple(LANGUAGES.values())),
    lambda r: _slice(r, (CODE, SCRIPT)),
    _characters,
    lambda r: r.choice((" ", "a", "=", "\n", "0", "的", "😀", "é", "A!")) * r.randrange(20, 400),
)


def generated(r: random.Random, number: int) -> Iterator[str]:
    """That many strings, the empty one first; one in fifty is long."""
    yield ""
    for index in range(1, number):
        pieces = r.randrange(60, 200) if index % 50 == 0 else r.randrange(1, 9)
        yield "".join(r.choice(PIECES)(r) for _ in range(pieces))
