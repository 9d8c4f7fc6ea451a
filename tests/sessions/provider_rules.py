"""What providers refuse, written down from their rules and independently of the code that renders for them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tests.sessions.cache_rules import cache_problems
from tests.sessions.name_rules import author_problems, definition_problems, tool_problems

WORD_ID = re.compile(r"[a-zA-Z0-9_-]+")
TEXT_ONLY = {"text"}
OPENAI_PARTS = {
    "system": TEXT_ONLY,
    "developer": TEXT_ONLY,
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": TEXT_ONLY,
}
HOSTED = ("server_tool_use", "search_result", "container_upload")


def openai_problems(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What chat completions would refuse: every call answered once, directly behind its message, and nothing else."""
    wrong = [*definition_problems(tools)]
    waiting: dict[str, None] = {}
    used: set[str] = set()
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            given = message.get("tool_call_id")
            if given not in waiting:
                wrong.append(f"{at}: result {given!r} answers nothing that is open")
            waiting.pop(given, None)
        elif waiting:
            wrong.append(f"{at}: {list(waiting)} not answered before the next message")
            waiting = {}
        wrong += [f"{at}: {each}" for each in _openai_message(message)]
        for call in message.get("tool_calls", ()):
            if call.get("id") in used:
                wrong.append(f"{at}: id {call.get('id')!r} comes twice")
            used.add(call.get("id"))
            waiting[call.get("id")] = None
    return wrong + ([f"end: {list(waiting)} not answered"] if waiting else [])


def _openai_message(message: dict[str, Any]) -> Iterable[str]:
    role = message.get("role")
    if role not in OPENAI_PARTS:
        yield f"role {role!r}"
        return
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        if not content:
            yield "content is an empty list"
        for part in content:
            yield from _openai_part(part, role)
    elif not isinstance(content, str) and not (role == "assistant" and content is None):
        yield f"content {content!r}"
    if role == "assistant" and content is None and not (calls or message.get("refusal") or message.get("audio")):
        yield "says nothing"
    yield from author_problems(message)
    if calls is not None and (role != "assistant" or not calls):
        yield "has tool_calls"
    for call in calls or ():
        yield from _openai_call(call)


def _openai_part(part: dict[str, Any], role: str) -> Iterable[str]:
    kind = part.get("type")
    if kind not in OPENAI_PARTS[role]:
        yield f"a part {kind!r} in {role}"
    elif kind == "text" and not isinstance(part.get("text"), str):
        yield "a text part without text"
    elif kind == "image_url" and not isinstance(part["image_url"].get("url"), str):
        yield "an image without url"
    elif kind == "file" and not ({"file_id"} & set(part["file"]) or {"file_data", "filename"} <= set(part["file"])):
        yield "a file without data and name"


def _openai_call(call: dict[str, Any]) -> Iterable[str]:
    if not isinstance(call.get("id"), str) or not 0 < len(call["id"]) <= 40:
        yield f"id {call.get('id')!r}"
    if call.get("type") == "custom":
        yield from tool_problems(call["custom"].get("name"), "a call")
        if not isinstance(call["custom"].get("input"), str):
            yield "custom call without input"
    elif call.get("type") != "function":
        yield f"call of type {call.get('type')!r}"
    else:
        yield from tool_problems(call["function"].get("name"), "a call")
        yield from _not_json(call["function"].get("arguments"))


def _not_json(text: Any) -> Iterable[str]:
    try:
        json.loads(text)
    except (TypeError, ValueError):
        yield f"arguments {text!r:.40}"


def responses_problems(kwargs: dict[str, Any]) -> list[str]:
    """What Responses would refuse: every call has one output behind it, ids are valid and used once."""
    wrong = [*definition_problems(kwargs.get("tools", ()))]
    waiting: dict[str, str] = {}
    used: set[str] = set()
    if set(kwargs) - {"input", "instructions", "tools"}:
        wrong.append(f"arguments {sorted(kwargs)}")
    for at, item in enumerate(kwargs["input"]):
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call"):
            given = item.get("call_id")
            if given in used or not isinstance(given, str) or len(given) > 64 or not WORD_ID.fullmatch(given):
                wrong.append(f"{at}: call_id {given!r}")
            used.add(given)
            waiting[given] = f"{kind}_output"
            field = "input" if kind == "custom_tool_call" else "arguments"
            wrong += [f"{at}: {each}" for each in tool_problems(item.get("name"), "a call")]
            wrong += [] if isinstance(item.get(field), str) else [f"{at}: call without {field}"]
            wrong += [f"{at}: {each}" for each in (_not_json(item[field]) if kind == "function_call" else ())]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if waiting.pop(item.get("call_id"), None) != kind:
                wrong.append(f"{at}: output {item.get('call_id')!r} answers nothing that is open")
            wrong += [f"{at}: {each}" for each in _responses_content(item.get("output"), "tool")]
        elif kind == "message":
            wrong += [f"{at}: {each}" for each in _responses_content(item.get("content"), item.get("role"))]
    return wrong + ([f"end: {list(waiting)} not answered"] if waiting else [])


def _responses_content(content: Any, role: Any) -> Iterable[str]:
    if role not in ("user", "system", "developer", "assistant", "tool"):
        yield f"role {role!r}"
    if isinstance(content, str):
        return
    allowed = {"output_text", "refusal"} if role == "assistant" else {"input_text", "input_image", "input_file"}
    if not isinstance(content, list) or not content:
        yield f"content {content!r:.40}"
        return
    for part in content:
        if part.get("type") not in allowed:
            yield f"a part {part.get('type')!r} in {role}"


def anthropic_problems(kwargs: dict[str, Any]) -> list[str]:
    """What Messages would refuse: first the user, then in turns, calls answered first thing in the next message."""
    wrong: list[str] = []
    if set(kwargs) - {"system", "messages", "tools"}:
        wrong.append(f"arguments {sorted(kwargs)}")
    wrong += [*definition_problems(kwargs.get("tools", ())), *_anthropic_system(kwargs), *cache_problems(kwargs)]
    messages = kwargs["messages"]
    if messages and messages[0].get("role") != "user":
        wrong.append("0: the first message is not the user's")
    open_calls: list[str] = []
    used: set[str] = set()
    for at, message in enumerate(messages):
        if at and message.get("role") == messages[at - 1].get("role"):
            wrong.append(f"{at}: the same role twice")
        found = list(_anthropic_message(message, open_calls))
        open_calls = [block.get("id") for block in _blocks(message) if block.get("type") == "tool_use"]
        found += [f"id {given!r}" for given in open_calls if not _is_fresh(given, used)]
        used.update(open_calls)
        wrong += [f"{at}: {each}" for each in found]
    if open_calls:
        wrong.append(f"end: {open_calls} not answered")
    if messages and messages[-1].get("role") == "assistant":
        last = _blocks(messages[-1])[-1]
        if last.get("type") == "text" and last["text"] != last["text"].rstrip():
            wrong.append("end: the last text ends in blanks")
    return wrong


def _anthropic_system(kwargs: dict[str, Any]) -> Iterable[str]:
    if "system" not in kwargs:
        return
    given = kwargs["system"]
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(blocks, list) or not blocks:
        yield f"system {given!r:.40}"
        return
    for block in blocks:
        if block.get("type") != "text" or set(block) - {"type", "text", "cache_control"}:
            yield f"system {block!r:.40}"
        elif not block["text"].strip():
            yield "a blank system prompt"


def _is_fresh(given: Any, used: set[str]) -> bool:
    return isinstance(given, str) and bool(WORD_ID.fullmatch(given)) and given not in used


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _anthropic_message(message: dict[str, Any], open_calls: list[str]) -> Iterable[str]:
    role, blocks = message.get("role"), _blocks(message)
    if role not in ("user", "assistant"):
        yield f"role {role!r}"
    if not blocks:
        yield "no content"
    results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if sorted(map(str, results)) != sorted(map(str, open_calls)):
        yield f"calls {open_calls}, results {results}"
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        yield "results do not come first"
    if len({*open_calls}) != len(open_calls):
        yield "an id twice among the open calls"
    for block in blocks:
        yield from _anthropic_block(block, str(role))


def _anthropic_block(block: dict[str, Any], role: str) -> Iterable[str]:
    kind = block.get("type")
    allowed = {
        "user": ("text", "image", "document", "tool_result", *HOSTED),
        "assistant": ("text", "thinking", "redacted_thinking", "tool_use", *HOSTED),
        "result": ("text", "image", "document", "search_result", "tool_reference"),
    }
    if kind not in allowed.get(role, ()) and not str(kind).endswith("_tool_result"):
        yield f"a block {kind!r} in {role}"
    elif kind == "text" and not (isinstance(block.get("text"), str) and block["text"].strip()):
        yield "a blank text"
    elif kind == "tool_use":
        yield from () if isinstance(block.get("input"), dict) else ("a call without input",)
        yield from tool_problems(block.get("name"), "a call")
    elif kind in ("image", "document"):
        yield from _anthropic_source(block["source"], kind)
    elif kind == "tool_result":
        content = block.get("content", "")
        if content == [] or (block.get("is_error") and not content) or (content and str(content).isspace()):
            yield "an empty list or blanks as a result, or nothing said of a failure"
        for inner in content if isinstance(content, list) else ():
            yield from _anthropic_block(inner, "result")


def _anthropic_source(source: dict[str, Any], kind: str) -> Iterable[str]:
    if source.get("type") == "base64":
        images = ("image/jpeg", "image/png", "image/gif", "image/webp")
        if source.get("media_type") not in (images if kind == "image" else ("application/pdf",)):
            yield f"media type {source.get('media_type')!r} in {kind}"
        try:
            base64.b64decode(source["data"], validate=True)
        except ValueError:
            yield "not base64"
    elif source.get("type") not in (("url", "file") if kind == "image" else ("url", "file", "text", "content")):
        yield f"source {source.get('type')!r}"
