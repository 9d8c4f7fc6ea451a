"""Loops of one's own with the providers' SDKs: they answer, ask, and survive being killed anywhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import holdfast
from examples import from_message_list, own_loop_anthropic, own_loop_async, own_loop_openai
from holdfast.testing import kill_everywhere
from tests.examples.killed import careful, deadly, killed, points_passed, whole
from tests.model_server import ModelServer

REFUND, BOOK, OSLO = "Please refund order 17.", "Book a table for two, for Bob.", "And the weather in Oslo?"
OLD: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is the weather in Rome?"},
    {"role": "assistant", "content": "It is sunny in Rome."},
    {"role": "user", "content": "And in Paris?"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "user", "content": "Are you there?"},
]
"""A list as a crash left it: the call has no result, which a provider refuses."""


class Shop(own_loop_openai.Shop):
    def refund(self, order: int, amount: float) -> str:
        return str(deadly("refund", lambda: super(Shop, self).refund(order, amount)))


class Restaurant(own_loop_anthropic.Restaurant):
    def book_table(self, table: int, name: str) -> str:
        return str(deadly("book_table", lambda: super(Restaurant, self).book_table(table, name)))


# to the end


def run_main(
    module: Any, server: ModelServer, folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: str
) -> list[str]:
    """Run a program as a user would; gives what it asked."""
    asked: list[str] = []
    left = list(answers)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["example"])
    monkeypatch.setattr("builtins.input", lambda prompt: (asked.append(prompt), left.pop(0))[1])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "not-a-key")
    module.main()
    return asked


def test_the_loop_with_openais_sdk_asks_and_answers(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = run_main(own_loop_openai, server, tmp_path, monkeypatch, "y")
    assert asked == ["refund(17, 240): may it run? [y/N] "]
    before = len(server.requests)
    assert run_main(own_loop_openai, server, tmp_path, monkeypatch) == [], "the same request again is answered at once"
    assert len(server.requests) == before
    assert capsys.readouterr().out.splitlines() == ["Done: 240 paid back for order 17."] * 2


def test_the_loop_with_openais_sdk_takes_a_no_and_an_unknown_tool(openai_client: openai.OpenAI) -> None:
    shop = own_loop_openai.Shop()
    with holdfast.open("memory:") as hf:
        assert own_loop_openai.work(hf, openai_client, shop, REFUND, "req-1") is None
        (question,) = hf.questions()
        hf.answer(question.id, approve=False, note="Not without a receipt.")
        reply = own_loop_openai.work(hf, openai_client, shop, REFUND, "req-1")
        assert "Not without a receipt." in str(reply)
        reply = own_loop_openai.work(hf, openai_client, shop, "How is the weather in Oslo?", "req-2")
        assert "There is no tool weather. The tools are find_order, refund" in str(reply)
    assert shop.paid == []


def test_the_loop_with_anthropics_sdk_streams_its_reply(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(own_loop_anthropic, server, tmp_path, monkeypatch) == []
    assert capsys.readouterr().out == "Done: table 4 is booked for Bob.\n"
    assert server.requests[-1]["stream"] is True


def test_the_loop_for_asyncio_streams_and_is_answered_once(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(own_loop_async, server, tmp_path, monkeypatch) == []
    assert capsys.readouterr().out == "It is sunny in Oslo.\n"
    assert server.requests[-1]["stream_options"] == {"include_usage": True}
    with holdfast.open(tmp_path / "agent.db") as hf:
        usage = hf.session("carol").usage
        assert usage.cost_known
        assert not usage.estimated


def test_a_list_of_messages_comes_in_once_and_goes_on_in_turns(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        run_main(from_message_list, server, tmp_path, monkeypatch)
    first = ["It is sunny in Rome.", "It is sunny in Oslo.", "8 messages"]
    assert capsys.readouterr().out.splitlines() == [*first, *first[1:]]
    assert server.requests[-1]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_old_loop_could_not_go_on_with_a_torn_list(openai_client: openai.OpenAI, server: ModelServer) -> None:
    with pytest.raises(openai.BadRequestError):
        from_message_list.before(openai_client, list(OLD), OSLO)
    server.problems.clear()
    with holdfast.open("memory:") as hf:
        assert from_message_list.after(hf, openai_client, OLD, OSLO, "req-2") == "It is sunny in Oslo."


# killed


def test_the_loop_with_openais_sdk_is_killed_everywhere(openai_client: openai.OpenAI) -> None:
    def run(hf: holdfast.Holdfast, shop: Shop) -> None:
        own_loop_openai.work(hf, openai_client, shop, REFUND, "req-81")

    def check(hf: holdfast.Holdfast, shop: Shop) -> None:
        assert shop.paid == [(17, 240)]
        whole(hf, "alice", REFUND, "Done: 240 paid back for order 17.")

    killed(run, world=Shop, check=check, answer=careful(lambda shop: shop.paid, "240 paid back for order 17"))


def test_the_loop_with_anthropics_sdk_is_killed_everywhere(anthropic_client: anthropic.Anthropic) -> None:
    def run(hf: holdfast.Holdfast, place: Restaurant) -> None:
        own_loop_anthropic.work(hf, anthropic_client, place, BOOK, "req-9", lambda words: None)

    def check(hf: holdfast.Holdfast, place: Restaurant) -> None:
        assert place.booked == [(4, "Bob")]
        whole(hf, "bob", BOOK, "Done: table 4 is booked for Bob.")

    killed(run, world=Restaurant, check=check, answer=careful(lambda place: place.booked, "table 4 is booked for Bob"))


def test_the_loop_for_asyncio_is_killed_everywhere(server: ModelServer) -> None:
    async def run(hf: holdfast.AsyncHoldfast, asked: list[str]) -> None:
        async def weather(city: str) -> str:
            return str(deadly("weather", lambda: asked.append(city) or "sunny"))

        async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as client:
            await own_loop_async.work(hf, client, {"weather": weather}, OSLO, "req-3", lambda words: None)

    def check(hf: holdfast.Holdfast, asked: list[str]) -> None:
        assert asked in (["Oslo"], ["Oslo", "Oslo"]), "it only reads, so it may run again"
        whole(hf, "carol", OSLO, "It is sunny.")

    killed(run, world=list, check=check)


def test_the_loop_that_moved_from_a_list_is_killed_everywhere(openai_client: openai.OpenAI) -> None:
    def run(hf: holdfast.Holdfast, asked: list[str]) -> None:
        from_message_list.after(
            hf, openai_client, OLD, OSLO, "req-2", lambda city: deadly("weather", lambda: asked.append(city) or "sunny")
        )

    def check(hf: holdfast.Holdfast, asked: list[str]) -> None:
        assert asked in (["Oslo"], ["Oslo", "Oslo"]), "it only reads, so it may run again"
        old = [message["content"] for message in OLD[1:] if message.get("content")]
        whole(hf, "alice", *old, OSLO, "It is sunny.")
        assert hf.session("alice").details.system == "Be brief."

    killed(run, world=list, check=check)


def test_a_loop_that_retries_what_pays_is_found_out(openai_client: openai.OpenAI) -> None:
    at: list[int] = []

    def run(hf: holdfast.Holdfast, shop: Shop) -> None:
        chat = hf.session("alice", model="gpt-5-mini", tools=own_loop_openai.TOOLS)
        with chat.turn(REFUND, key="k", if_interrupted="retry") as turn:
            for step in turn:
                if isinstance(step, holdfast.CallModel):
                    step.done(openai_client.chat.completions.create(model=step.model, **step.pack.to_openai()))
                elif isinstance(step, holdfast.CallTool):
                    at.append(points_passed())
                    step.done(getattr(shop, step.name)(**step.args))

    kill = partial(kill_everywhere, run, world=Shop, check=lambda hf, shop: shop.paid == [(17, 240)], journal="memory")
    kill(points=[1])
    before = at[len(at) // 2 - 1] + 1  # In the first of two whole runs.
    kill(points=[before])
    with pytest.raises(AssertionError, match="Killed after refund: check gave False"):
        kill(points=[before + 1])


def test_a_loop_without_a_key_says_things_twice_and_is_found_out(anthropic_client: anthropic.Anthropic) -> None:
    def run(hf: holdfast.Holdfast, place: Restaurant) -> None:
        own_loop_anthropic.work(hf, anthropic_client, place, BOOK, None, lambda words: None)  # type: ignore[arg-type]

    def check(hf: holdfast.Holdfast, place: Restaurant) -> None:
        whole(hf, "bob", BOOK, "Done: table 4 is booked for Bob.")

    with pytest.raises(AssertionError, match="every message is there, and once"):
        killed(run, world=Restaurant, check=check, answer=careful(lambda place: place.booked))
