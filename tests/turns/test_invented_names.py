"""A name that a model invented is kept as it wrote it, and no provider is ever shown one that it would refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCallRequest, ToolCallResult, tool
from holdfast.core.sessions import tokens
from holdfast.core.sessions.tokens import Framing, message_tokens
from holdfast.core.wire import anthropic, openai_chat, openai_responses, plain_data, tools
from holdfast.core.wire import calls as wire_calls
from holdfast.core.wire.tools import sendable_tool_name
from holdfast.errors import ModelFailed
from holdfast.model.providers import ADAPTERS
from tests.model_server import ModelServer, model_server
from tests.scale import seeded, volume
from tests.sessions.generated import INVENTED
from tests.sessions.name_rules import tool_problems
from tests.turns.agent_world import SESSION, Counted
from tests.turns.loops import check_whole
from tests.turns.model_kit import KEY, KINDS

Holdfast = holdfast.Holdfast
NAMES = ("functions.refund", "re fund", "refund\n", "🙂", *INVENTED)
LETTERS = "ab_-.0 /:🙂é<|>\n"
ZERO = Framing(**{name: 0 for name in Framing.__struct_fields__ if name != "name"}, name="nothing around it")


@tool
def refund(order: int) -> str:
    """Pay back."""
    return f"paid {order}"


@tool
def quiet(fails: bool) -> str:
    """Say nothing."""
    if fails:
        raise holdfast.errors.ToolFailed(" ")
    return " \n"


def invented(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.choice([1, 3, 12, 12, 64, 65, 200])))


# on the wire


async def no_wait(seconds: float) -> None:
    """A model that asks again does so at once."""


def on_the_wire(kind: str, script: list[Any], sent: int, **how: Any) -> tuple[list[str], ModelServer, list[Message]]:
    """What went wrong when an agent sent some messages to a provider that follows a script."""
    with model_server(script) as server, holdfast.open("memory:") as hf:
        model = ADAPTERS[kind]("m", base_url=server.url, api_key=KEY, sleep=no_wait)
        agent = hf.agent("a", model=model, **{"tools": [refund, quiet], "history": False, **how})
        wrong = []
        for number in range(sent):
            try:
                reply = agent.send(SESSION, f"Message {number}")
            except ModelFailed as error:
                wrong.append(f"{number}: {error}")
            else:
                wrong += [] if reply.status == "done" else [f"{number}: {reply.status}, {reply.reason}"]
        said = hf.session(SESSION).messages()
        if not wrong:
            check_whole(hf)
        return [*wrong, *server.problems], server, said


def calls(*made: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in made]


@pytest.mark.parametrize("kind", KINDS)
def test_no_later_request_is_refused_for_a_name_that_the_model_invented(kind: str) -> None:
    made = [(name, {"order": number}) for number, name in enumerate(NAMES)]
    wrong, server, said = on_the_wire(
        kind, [calls(*made), "Sorry.", calls(("refund", {"order": 7})), "Paid.", "Yes."], 3
    )
    assert wrong == []
    assert [call.name for message in said for call in message.tool_calls] == [*NAMES, "refund"]
    assert len(server.requests) == 5
    told = [result.result for message in said for result in message.tool_results]
    assert all("There is no tool" in each for each in told[:-1])
    assert told[-1] == "paid 7"


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_without_a_name_is_no_reply_and_the_next_one_is_taken(kind: str) -> None:
    wrong, server, said = on_the_wire(kind, [calls(("", {"order": 7})), "Here.", "Yes."], 2)
    assert wrong == []
    assert [message.text for message in said] == ["Message 0", "Here.", "Message 1", "Yes."]
    assert len(server.requests) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("system", [" \n", "\t", ""])
def test_nothing_blank_is_sent(kind: str, system: str) -> None:
    script = [calls(("quiet", {"fails": False}), ("quiet", {"fails": True})), "Done.", "Yes."]
    wrong, server, _ = on_the_wire(kind, script, 2, system=system)
    assert wrong == []
    for request in server.requests:
        assert not {"system", "instructions"} & set(request)
        assert all(message.get("role") != "system" for message in request.get("messages", ()))


# what is written


def test_what_was_shown_is_shown_again_and_exported_as_the_model_wrote_it(hf: Holdfast) -> None:
    made = [ToolCallRequest(name=name) for name in NAMES]
    model = Counted({"one": [made, "Sorry."], "two": ["Yes."]})
    agent = hf.agent("a", model=model, tools=[refund], history=False)
    chat = hf.session(SESSION)
    assert [agent.send(SESSION, text).status for text in ("One", "Two")] == ["done", "done"]
    packs = [chat.pack_at(info.call) for info in reversed(chat.packs.list())]
    for asked, again in zip(model.requests, packs, strict=True):
        assert again.digest == asked.pack.digest
        assert (again.to_openai(), again.to_anthropic()) == (asked.pack.to_openai(), asked.pack.to_anthropic())
    assert names_in(packs[1].to_openai()) == names_in(packs[2].to_openai()) == [*map(sendable_tool_name, NAMES)]
    assert names_in(openai_chat.render_request(chat.messages(), ids="provider")) == [*NAMES]


def names_in(request: Any) -> list[str]:
    return [call["function"]["name"] for message in request["messages"] for call in message.get("tool_calls", ())]


def name_problems(rng: random.Random) -> list[str]:
    """What is wrong with the names that are made of names."""
    given = {*NAMES, *(invented(rng) for _ in range(40))}
    wrong = [problem for name in given for problem in tool_problems(sendable_tool_name(name), repr(name))]
    wrong += [name for name in given if not [*tool_problems(name, "")] and sendable_tool_name(name) != name]
    wrong += [name for name in given if sendable_tool_name(sendable_tool_name(name)) != sendable_tool_name(name)]
    if len({*map(sendable_tool_name, given)}) < len(given):
        wrong.append("two names are told as one")
    alike = [
        name for name in given if [*tool_problems(name, "")] and sendable_tool_name(name) == name.replace(".", "_")
    ]
    return wrong + [f"{name!r} is told as a tool that may well be there" for name in alike]


def count_problems(rng: random.Random) -> list[str]:
    """Messages that have other characters than were counted."""
    name, other = invented(rng), rng.choice(NAMES)
    shown = [
        Message(role="user", content="Go.", name=rng.choice([None, "Ann", "two words", "a/b" * 40])),
        Message(role="assistant", tool_calls=(_call(name, "a"), _call(other, "b"), _call("refund", "c"))),
        Message(role="tool", tool_results=(_result("a"), _result("b", error=True)), name=name),
        Message(role="tool", tool_results=(_result("c", " "),), name=rng.choice([None, "refund"])),
    ]
    counted = sum(message_tokens(message, len, ZERO) for message in shown)
    chat = sum(map(_length, openai_chat.render_request(shown)["messages"]))
    blocks = [block for one in anthropic.render_request(shown)["messages"] for block in one["content"]]
    told = [*map(sendable_tool_name, (name, other, "refund"))]
    wrong = [] if chat == counted else [f"{name!r}: {counted} counted, {chat} sent"]
    for written in (
        openai_responses.render_request(shown)["input"],
        [block for block in blocks if isinstance(block, dict)],
    ):
        if (found := [one["name"] for one in written if "name" in one]) != told:
            wrong.append(f"{found} told, not {told}")
    return wrong


def _call(name: str, id: str) -> ToolCallRequest:
    return ToolCallRequest(name=name, arguments='{"order": 7}', provider_id=id)


def _result(id: str, said: str = "ok", *, error: bool = False) -> ToolCallResult:
    return ToolCallResult(provider_id=id, result="" if error else said, is_error=error)


def _length(message: dict[str, Any]) -> int:
    """Characters of everything that is text in a message of chat completions, without its role and ids."""
    made = [call["function"] for call in message.get("tool_calls", ())]
    texts = [message["content"] or "", message.get("name", ""), *(one["name"] + one["arguments"] for one in made)]
    return sum(map(len, texts))


def test_names_that_are_sent_are_valid_and_told_apart() -> None:
    rng = seeded("names")
    for _ in range(volume(30, 3_000)):
        assert name_problems(rng) == []


def test_what_is_counted_is_what_is_sent() -> None:
    rng = seeded("counted names")
    for _ in range(volume(60, 5_000)):
        assert count_problems(rng) == []


# planted bugs


def names_are_sent_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wire_calls, "sendable_tool_name", lambda name: name)


def names_are_counted_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tokens, "sendable_tool_name", lambda name: name)


def authors_are_counted_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tokens, "sendable_author_name", lambda name: name)


def names_have_no_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tools, "_MARK_CHARS", 0)


def blank_prompts_are_sent(patch: pytest.MonkeyPatch) -> None:
    for module in (openai_chat, plain_data):
        patch.setattr(module, "drop_blank_prompt", lambda system: system)


def sent_to_openai() -> list[str]:
    return on_the_wire("openai", [calls(("functions.refund", {"order": 7})), "Sorry."], 2)[0]


def sent_blanks() -> list[str]:
    return on_the_wire("anthropic", ["Hello."], 1, system=" ")[0]


def counted() -> list[str]:
    rng = random.Random(5)
    return [problem for _ in range(30) for problem in count_problems(rng)]


PLANTED = [
    (names_are_sent_as_they_are, sent_to_openai),
    (names_are_counted_as_they_are, counted),
    (authors_are_counted_as_they_are, counted),
    (names_have_no_mark, lambda: name_problems(random.Random(5))),
    (blank_prompts_are_sent, sent_blanks),
]


@pytest.mark.parametrize(("plant", "trial"), PLANTED)
def test_each_planted_bug_is_noticed(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], trial: Callable[[], list[str]]
) -> None:
    assert trial() == []
    with monkeypatch.context() as patch:
        plant(patch)
        assert trial() != []
