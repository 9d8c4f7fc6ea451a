"""Messages, system prompts and tools in tokens: texts exactly, everything around them at the most it can be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.sessions import tokens
from holdfast.core.sessions.tokens import (
    ANTHROPIC,
    OPENAI,
    OTHER,
    PAGE_TOKENS,
    RESPONSES,
    SEAM_TOKENS,
    Framing,
    framing_of,
    message_tokens,
    request_tokens,
    system_tokens,
    tools_tokens,
)
from holdfast.errors import InvalidValue
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolCallResult, ToolDef
from tests.scale import seeded

COUNT = resolve_tokenizer("o200k_base").count
FRAMINGS = (OPENAI, RESPONSES, ANTHROPIC, OTHER)
PNG = b"\x89PNG" + bytes(5_000)


def one(value: Any, count: Any = COUNT, framing: Framing = OPENAI, **fields: Any) -> int:
    """The tokens of a result, without the message around it."""
    result = ToolCallResult(result=value, **fields)
    return (
        message_tokens(Message(role="tool", tool_results=(result,)), count, framing) - framing.message - framing.result
    )


def part(framing: Framing = OPENAI, **fields: Any) -> int:
    """The tokens of one part."""
    return message_tokens(Message(role="user", content=[fields]), COUNT, framing) - framing.message


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.name)
def test_a_text_message_is_its_text_and_the_framing(framing: Framing) -> None:
    assert message_tokens(Message(role="user", content="hello world"), COUNT, framing) == 2 + framing.message
    assert message_tokens(Message(role="user", content="hi", name="Bob"), COUNT, framing) == (
        2 + framing.message + framing.author
    )
    assert system_tokens("hello world", COUNT, framing) == 2 + framing.message
    assert system_tokens("", COUNT, framing) == system_tokens(None, COUNT, framing) == 0
    assert tools_tokens((), COUNT, framing) == 0


def test_openais_published_rule_for_messages_is_met_exactly() -> None:
    """Three for a message, the role, the name and one more, three for the reply: OpenAI's own example."""
    messages = [
        Message(role="system", content="You are a helpful, pattern-following assistant."),
        Message(role="system", name="example_user", content="New synergies will help drive top-line growth."),
        Message(role="user", content="This late pivot means we don't have time to boil the ocean."),
    ]
    published = 3
    for message in messages:
        published += 3 + COUNT(message.role) + COUNT(message.text)
        published += 1 + COUNT(message.name) if message.name else 0
    assert request_tokens(messages, COUNT, OPENAI) == published


@pytest.mark.parametrize(("calls", "billed"), [(1, 40), (2, 89), (3, 114)])
def test_tool_calls_and_results_are_not_below_what_openai_billed(calls: int, billed: int) -> None:
    """Requests that somebody sent to gpt-3.5-turbo, and the prompt tokens in the replies."""
    count = resolve_tokenizer("cl100k_base").count
    call = ToolCallRequest(name="calculator", arguments='{"a":2, "b":2}')
    messages = [
        Message(role="user", content="How much is 2 plus 2?"),
        Message(role="assistant", tool_calls=(call,) * calls),
        *(Message(role="tool", tool_results=(ToolCallResult(result="4"),)) for _ in range(calls)),
    ]
    assert billed <= request_tokens(messages, count, OPENAI) <= billed * 1.4


def published_for_tools(tools: list[ToolDef]) -> int:
    """OpenAI's rule of thumb for functions with flat parameters, with its constants for gpt-4o."""
    total = 12
    for tool in tools:
        total += 7 + COUNT(f"{tool.name}:{(tool.description or '').rstrip('.')}")
        properties = tool.parameters.get("properties", {})
        total += 3 if properties else 0
        for key, value in properties.items():
            total += 3 + COUNT(f"{key}:{value['type']}:{value.get('description', '').rstrip('.')}")
            total += sum(3 + COUNT(item) for item in value.get("enum", ())) - (3 if "enum" in value else 0)
    return total


def test_tool_definitions_are_not_below_openais_rule() -> None:
    r = seeded("tools")
    words = [
        "city",
        "order_id",
        "The place, e.g. San Francisco, CA.",
        "unit",
        "Überweisung",
        "日付",
        "amount in cents",
        "x",
    ]
    for _ in range(200):
        tools = []
        for _ in range(r.randrange(1, 5)):
            properties: dict[str, Any] = {}
            for number in range(r.randrange(6)):
                properties[f"{r.choice(words)}{number}"] = {"type": r.choice(["string", "integer", "boolean"])}
            for value in properties.values():
                if r.random() < 0.7:
                    value["description"] = " ".join(r.choices(words, k=r.randrange(1, 9)))
                if r.random() < 0.3:
                    value["enum"] = r.choices(words, k=r.randrange(1, 6))
            parameters = {"type": "object", "properties": properties}
            description = r.choice([None, "", "Looks something up."])
            tools.append(ToolDef(name="look_up", description=description, parameters=parameters))
        rule = published_for_tools(tools)
        counted = tools_tokens(tools, COUNT, OPENAI)
        assert rule <= counted <= rule * 2.5 + 30


def test_a_tool_of_anthropics_example_is_not_below_what_it_says() -> None:
    """403 tokens for this request, in the documentation of token counting."""
    place = {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}
    weather = ToolDef(
        name="get_weather",
        description="Get the current weather in a given location",
        parameters={"type": "object", "properties": {"location": place}, "required": ["location"]},
    )
    asked = [Message(role="user", content="What's the weather like in San Francisco?")]
    count = resolve_tokenizer("estimate:1.6").count
    assert request_tokens(asked, count, ANTHROPIC, tools=[weather]) >= 403
    assert (
        request_tokens([Message(role="user", content="Hello, Claude")], count, ANTHROPIC, system="You are a scientist")
        >= 14
    )


def test_a_providers_own_tool_is_counted_with_a_reserve_for_its_instructions() -> None:
    hosted = ToolDef(name="web_search", raw={"type": "web_search_preview"})
    assert tools_tokens([hosted], COUNT, OPENAI) > OPENAI.tools + OPENAI.hosted_tool


def test_results_are_counted_in_the_form_in_which_they_are_sent() -> None:
    assert one("hello world") == 2
    assert one({"city": "Köln", "n": [1, 2.5, None]}) == COUNT('{"city":"Köln","n":[1,2.5,null]}')
    assert one(None) == COUNT("null")
    assert one(None, interrupted=True) == COUNT(f"Error: {INTERRUPTED_RESULT}")
    assert one(["a", "b"]) == COUNT('["a","b"]')
    assert one([{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]) == 2 + SEAM_TOKENS
    assert one([{"type": "image", "url": "https://x"}]) == OPENAI.part + OPENAI.image


def test_images_are_counted_at_the_most_their_provider_takes() -> None:
    assert part(type="image", url="https://x", detail="low") == OPENAI.part + 85
    assert part(type="image", url="https://x") >= 85 + 8 * 170
    assert part(ANTHROPIC, type="image", url="https://x") >= 4_784
    small = framing_of("openai", "gpt-4o-mini-2024-07-18")
    assert part(small, type="image", url="https://x", detail="low") >= 2_833
    assert part(small, type="image", url="https://x") >= 2_833 + 8 * 5_667


def test_files_are_counted_by_their_text_or_by_their_size_and_a_part_may_say_better() -> None:
    text = "Refunds need approval. " * 50
    assert part(type="file", media_type="text/plain", data=text.encode()) == OPENAI.part + COUNT(text)
    assert part(type="file", media_type="text/plain", artifact="a", size=len(text)) >= COUNT(text)
    pdf = {"type": "file", "media_type": "application/pdf", "artifact": "a"}
    assert part(**pdf) == part(**pdf, size=10) == part(**pdf, data=b"1234") == OPENAI.part + PAGE_TOKENS
    assert part(**pdf, size=90_000) == OPENAI.part + 5 * PAGE_TOKENS
    assert part(**pdf, size=10**9) == OPENAI.part + 100 * PAGE_TOKENS
    assert part(**pdf, tokens=123) == part(type="image", data=PNG, tokens=123) == OPENAI.part + 123
    assert part(**pdf, size=-1) == part(**pdf, size=True) == part(**pdf, tokens="7") == part(**pdf)
    assert part(**pdf, name="report.pdf") == part(**pdf) + COUNT("report.pdf")


def test_reasoning_and_strange_parts_are_counted_as_their_json() -> None:
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAAABo" * 30, "summary": []}
    sent = COUNT(msgspec.json.encode(item).decode())
    assert part(type="reasoning", provider="openai", item=item) == OPENAI.part + sent
    assert part(type="other", provider="openai", item=item) == OPENAI.part + sent
    assert part(type="new", value=1) == OPENAI.part + COUNT('{"type":"new","value":1}')
    assert part(type="call", call=0) == 0
    assert part(type="refusal", text="hello world") == 2
    assert part(type="text", text=7) > 0


def test_a_message_without_content_is_its_framing_and_an_erased_one_says_so() -> None:
    assert message_tokens(Message(role="user"), COUNT, OPENAI) == OPENAI.message
    assert message_tokens(Message(role="user", content=[]), COUNT, OPENAI) == OPENAI.message
    assert message_tokens(Message(role="user", erased=True), COUNT, OPENAI) > OPENAI.message


@pytest.mark.parametrize("seam", [SEAM_TOKENS, 0], ids=["counted", "forgotten"])
def test_parts_are_not_below_their_texts_joined(monkeypatch: pytest.MonkeyPatch, seam: int) -> None:
    """Joining two texts can add a token, as in abs|sb: counting them apart alone would be low."""
    monkeypatch.setattr(tokens, "SEAM_TOKENS", seam)
    r = seeded("seams")
    low = 0
    for _ in range(2_000):
        texts = ["".join(r.choices("ab \n1'sé的", k=r.randrange(8))) for _ in range(4)]
        message = Message(role="user", content=[{"type": "text", "text": text} for text in texts])
        low += message_tokens(message, COUNT, OPENAI) < COUNT("".join(texts)) + OPENAI.message
    assert low == 0 if seam else low > 0


def test_a_plain_message_asks_the_tokenizer_once_and_a_call_twice() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 1

    message_tokens(Message(role="user", content="hello"), count, OPENAI)
    assert asked == ["hello"]
    asked.clear()
    message_tokens(
        Message(role="assistant", content="so", tool_calls=(ToolCallRequest(name="f", arguments='{"a":1}'),)),
        count,
        OPENAI,
    )
    assert asked == ["so", "f", '{"a":1}']


def test_a_tokenizer_that_fails_and_a_lone_surrogate_are_refusals() -> None:
    def broken(text: str) -> int:
        raise RuntimeError("no")

    for message in (
        Message(role="user", content="x"),
        Message(role="user", content=[{"type": "text", "text": "x"}]),
        Message(role="assistant", tool_calls=(ToolCallRequest(name="f"),)),
        Message(role="tool", tool_results=(ToolCallResult(result={"a": 1}),)),
    ):
        with pytest.raises(InvalidValue, match="tokenizer broken failed"):
            message_tokens(message, resolve_tokenizer(broken).count, OPENAI)
    with pytest.raises(InvalidValue, match="surrogate"):
        message_tokens(Message(role="user", content="\ud800"), COUNT, OPENAI)


def test_a_provider_has_its_framing_and_a_stranger_the_cautious_one() -> None:
    assert framing_of("openai", "gpt-4o") is framing_of("azure") is OPENAI
    assert framing_of("anthropic", "claude-opus-5") is ANTHROPIC
    assert framing_of("responses") is RESPONSES
    assert framing_of("google") is framing_of(None) is framing_of("") is OTHER


def test_a_framing_that_forgets_calls_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "OPENAI", msgspec.structs.replace(OPENAI, call=0, parallel=0))
    count = resolve_tokenizer("cl100k_base").count
    messages = [
        Message(role="user", content="How much is 2 plus 2?"),
        Message(role="assistant", tool_calls=(ToolCallRequest(name="calculator", arguments='{"a":2, "b":2}'),) * 2),
        *(Message(role="tool", tool_results=(ToolCallResult(result="4"),)) for _ in range(2)),
    ]
    assert request_tokens(messages, count, tokens.OPENAI) < 89
