"""The redaction hook: text that it removes is never journaled, counted, hashed or named.

The hook maps text to text; structure, ids and places stay, so that calls and results still belong together. It must
be idempotent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.core.lazy import convert, lazy_module
from holdfast.core.values import exception_text
from holdfast.errors import HoldfastError, InvalidValue, RedactionFailed
from holdfast.records.events.envelope import Content
from holdfast.records.messages import Message, Part, ToolCallRequest

if TYPE_CHECKING:
    import json
else:
    json = lazy_module(__name__, "json")

Redact = Callable[[str], str]
_STRUCTURE_FIELDS = frozenset({"type", "artifact", "media_type", "provider", "file_id", "detail", "data"})
"""Fields that name a part or where its body lies, not its content."""


def check_hook(redact: object) -> Redact | None:
    """Check a function from text to text, or None."""
    if redact is not None and not callable(redact):
        raise InvalidValue(f"redact must be a function from text to text, not {type(redact).__name__}.")
    return redact


def redact_text(redact: Redact, given: str) -> str:
    """Redact one text."""
    try:
        found = redact(given)
    except HoldfastError:
        raise
    except Exception as error:
        raise RedactionFailed(
            f"The redaction hook raised {exception_text(error)}. Nothing was written; correct it."
        ) from error
    if not isinstance(found, str):
        raise RedactionFailed(f"The redaction hook gave {type(found).__name__}, not text. Nothing was written.")
    return found


def redact_value(redact: Redact, given: Any) -> Any:
    """Redact every text in plain data, and numbers and field names too: a card number or an address may be one."""
    if isinstance(given, str):
        return redact_text(redact, given)
    if isinstance(given, list | tuple):
        return [redact_value(redact, item) for item in given]
    if isinstance(given, dict):
        fields: dict[str, Any] = {}
        for name, item in given.items():
            shown = wanted = redact_text(redact, name) if isinstance(name, str) else name
            number = 2
            while shown in fields:  # Keep fields apart even if their redacted names collide.
                shown, number = f"{wanted} {number}", number + 1
            fields[shown] = redact_value(redact, item)
        return fields
    if isinstance(given, int | float) and not isinstance(given, bool):
        shown = repr(given)
        found = redact_text(redact, shown)
        return given if found == shown else found
    return given


def redact_message(redact: Redact, given: Message) -> Message:
    """Redact a message with its arguments, results and text files; drop signed items that would have to change."""
    content: Any = given.content
    if isinstance(content, str):
        content = redact_text(redact, content)
    elif content is not None:
        content = [found for part in content if (found := _redact_part(redact, part)) is not None]
    return replace(
        given,
        content=content,
        tool_calls=tuple(_redact_call(redact, call) for call in given.tool_calls),
        tool_results=tuple(replace(one, result=_redact_result(redact, one.result)) for one in given.tool_results),
        name=None if given.name is None else redact_text(redact, given.name),
        metadata=redact_value(redact, given.metadata),
    )


def _redact_part(redact: Redact, part: Part) -> Part | None:
    if part.get("type") in ("reasoning", "other"):
        # A signed item cannot be changed, only kept or dropped: it is dropped if redaction would change it.
        return part if redact_value(redact, part.get("item")) == part.get("item") else None
    found = {name: item if name in _STRUCTURE_FIELDS else redact_value(redact, item) for name, item in part.items()}
    if isinstance(part.get("data"), bytes):
        try:
            shown = part["data"].decode()
        except UnicodeDecodeError:
            return found
        # A file that decodes as text is redacted, whatever its media type.
        found["data"] = part["data"] if "\0" in shown else redact_text(redact, shown).encode()
    return found


def _redact_result(redact: Redact, result: Any) -> Any:
    if isinstance(result, list) and all(isinstance(part, dict) and "type" in part for part in result):
        return [found for part in result if (found := _redact_part(redact, part)) is not None]
    return redact_value(redact, result)


def _redact_call(redact: Redact, call: ToolCallRequest) -> ToolCallRequest:
    """Redact the texts in the arguments one by one, and re-encode the JSON only if one of them changed."""
    repeated: list[str] = []

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return dict(pairs)

    try:
        given = json.loads(call.arguments, object_pairs_hook=fields)
    except ValueError:
        return replace(call, arguments=redact_text(redact, call.arguments))
    found = redact_value(redact, given)
    # json.loads keeps only the last value of a repeated name: re-encode, so that unredacted values are dropped.
    if found == given and not repeated:
        return call
    return replace(call, arguments=json.dumps(found, ensure_ascii=False, separators=(",", ":")))


def redact_content(redact: Redact, given: Content) -> Content:
    """Redact the content of any event."""
    plain = msgspec.to_builtins(given)
    found = {name: redact_value(redact, item) for name, item in plain.items()}
    return given if found == plain else convert(found, type(given))
