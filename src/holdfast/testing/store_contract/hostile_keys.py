"""Hostile keys: 108 names that have broken stores, grouped by what they try, and whether each is accepted.

A key is data. Refused keys are not text, are too long, or have an invisible twin. Every other key is kept as it is,
in a place of its own and never outside the store, whatever a file system, a query language or a shell makes of it.
"""

from __future__ import annotations

from typing import Final

HOSTILE_KEYS_BY_KIND: Final[dict[str, tuple[str, ...]]] = {
    "traversal": (
        *("..", "../escape", "../../../../../../tmp/escape", "a/../../escape", "a/..", "./../escape"),
        *("/../escape", "..\\escape", "....//escape", "..;/escape"),
    ),
    "traversal in other encodings": (
        *("%2e%2e/escape", "%2e%2e%2fescape", "%2E%2E%2Fescape", "..%2fescape", "%252e%252e%252fescape"),
        *("..%5cescape", "..%c0%afescape", "%uff0e%uff0e/escape"),
        *("\uff0e\uff0e\uff0fescape", "\u2024\u2024/escape"),
    ),
    "absolute paths": (
        *("/", "/etc/passwd", "//etc/passwd", "/dev/null", "\\", "~"),
        *("~root/.ssh/authorized_keys", "file:///etc/passwd"),
    ),
    "drives, shares and streams": (
        *("C:\\Windows\\win.ini", "c:relative", "\\\\server\\share\\file", "\\\\?\\C:\\file", "a::$DATA"),
    ),
    "dots and empty segments": (".", "...", ".hidden", "a/./b", "a//b", "a/", "/a", "a/ /b"),
    "devices": ("CON", "nul", "AUX.txt", "com1", "LPT9.json"),
    "trailing dots and spaces": ("trail", "trail.", "trail ", " trail", "trail. ."),
    "suffixes that a store gives itself": (
        *("a", "a/b", "a.json", "a.json.json", "a.json/b", "a.md", "a.tmp", ".tmp", ".json", ".lock"),
    ),
    "lengths": (
        *("l" * 255, "l" * 256, "l" * 512, "l" * 513, "é" * 512, "世" * 342),
        *("d/" * 200 + "d", "n" * 200 + "/leaf"),
    ),
    "twins by case": ("Case", "case", "CASE", "straße", "STRASSE"),
    "twins by form": ("caf\u00e9", "cafe\u0301", "\u212b", "\ufb01", "fi"),
    "what cannot be seen": ("a\u200bb", "ab", "a\u202eb", "\ufeffab", "a\u00adb"),
    "emoji": ("👩\u200d👩\u200d👧", "🙂"),
    "control characters": ("", "a\0b", "a\nb", "a\r\nb", "\x1b[31m", "a\x7f", "\u0085", "\u2028"),
    "lone surrogates": ("\ud800", "a\udc80"),
    "percent signs": ("%", "%2F", "%00", "a%2Fb"),
    "patterns": ("*", "[a-z]?"),
    "languages": (
        *("'; DROP TABLE entries; --", "]] redis.call('FLUSHALL') --", "} ?[x] <- [[1]] :rm entries {"),
        *("$(touch escape)", '{"a": "\\u0000"}', "---\n# front matter"),
    ),
}

HOSTILE_KEYS: Final[tuple[str, ...]] = tuple(key for keys in HOSTILE_KEYS_BY_KIND.values() for key in keys)

REFUSED_KEYS: Final = frozenset(
    {
        "l" * 513,
        "世" * 342,
        "cafe\u0301",
        "\u212b",
        *(key for key in HOSTILE_KEYS_BY_KIND["what cannot be seen"] if key != "ab"),
        "👩\u200d👩\u200d👧",
        *HOSTILE_KEYS_BY_KIND["control characters"],
        *HOSTILE_KEYS_BY_KIND["lone surrogates"],
        "---\n# front matter",
    }
)

ACCEPTED_KEYS: Final[tuple[str, ...]] = tuple(key for key in HOSTILE_KEYS if key not in REFUSED_KEYS)
