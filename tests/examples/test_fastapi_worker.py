"""The web worker: clients come and go, workers come and go, and nobody misses anything or pays twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast
from examples import fastapi_worker
from examples.fastapi_worker import Shop, make_app
from holdfast import Scripted
from holdfast.testing import call
from tests.docs.pages import ROOT
from tests.examples.killed import careful, deadly, killed, whole
from tests.examples.worker import Heard, heard_after, saying, served, wait_for

ASKED = "Please refund order 17."
DONE = "Order 17 is paid back, as you asked."
LONG = "Order 17 is paid back, and you will find the money in your account within a few days."
TURN = ["message", "reply", "tool", "result", "reply", "done"]


def slow(pause: float = 0.005) -> Scripted:
    return Scripted([["One moment, please. ", call("refund", order=17)], LONG], pause=pause)


def kinds(heard: list[Heard]) -> list[str]:
    return [one.kind for one in heard if one.kind not in ("delta", "tool_call")]


def journaled(heard: list[Heard]) -> list[tuple[str, dict[str, Any]]]:
    return [(one.kind, one.data) for one in heard if one.id is not None]


def said(heard: list[Heard]) -> str:
    return "".join(one.text for one in heard if one.kind == "delta")


# clients come and go


def test_a_request_is_streamed_and_sent_again_it_is_told_again_and_not_done_again(tmp_path: Path) -> None:
    shop = Shop()
    with served(make_app(str(tmp_path / "a.db"), shop=shop)) as client:
        with saying(client, ASKED, "req-81") as heard:
            first = list(heard)
        with saying(client, ASKED, "req-81") as heard:
            again = list(heard)
        assert client.post("/chats/alice/stop").json() == {"stopped": False}
        assert client.post("/chats/alice/messages", json={"text": ASKED}).status_code == 422, "a key is needed"
        assert client.post(f"/questions/{'0' * 26}", json={"approve": True}).status_code == 404
        other = client.post("/chats/alice/messages", json={"text": "Hello"}, headers={"Idempotency-Key": "req-81"})
        assert (other.status_code, "detail" in other.json()) == (409, True), "the key stands for other words"
        assert client.get("/chats/alice/events", headers={"Last-Event-ID": "yesterday"}).status_code == 422
    assert kinds(first) == TURN
    assert said(first) == first[-2].text == DONE
    assert journaled(again) == journaled(first)
    assert shop.paid == [17]


@pytest.mark.parametrize("until", ["message", "tool", "result", "words"])
def test_who_reconnects_hears_exactly_the_rest(tmp_path: Path, until: str) -> None:
    shop = Shop()
    with served(make_app(str(tmp_path / "a.db"), model=slow(), shop=shop)) as client:
        before: list[Heard] = []
        with saying(client, ASKED, "req-81") as heard:
            for one in heard:
                before.append(one)
                if one.kind == until or (until == "words" and kinds(before)[-1] == "result" and one.kind == "delta"):
                    break
        after = heard_after(client, [one.id for one in before if one.id][-1])
        all_of_it = heard_after(client, "0.0")
    assert journaled(before) + journaled(after) == journaled(all_of_it), "nothing is missed, and nothing comes twice"
    assert kinds(all_of_it) == TURN
    replies = [one.text for one in after if one.kind == "reply"]
    assert "".join(replies).endswith(said(after)), "a reply that was under way is told from its beginning"
    assert replies[-1] == LONG
    assert shop.paid == [17]


def test_a_stop_keeps_what_was_shown(tmp_path: Path) -> None:
    model = Scripted([" ".join(f"word-{number}" for number in range(2_000))], pause=0.005)
    heard: list[Heard] = []
    with served(make_app(str(tmp_path / "a.db"), model=model)) as client, saying(client, "Talk.", "req-82") as events:
        for one in events:
            heard.append(one)
            if len(heard) == 5:
                assert client.post("/chats/alice/stop").json() == {"stopped": True}
    assert kinds(heard) == ["message", "reply", "stopped"]
    kept = next(one for one in heard if one.kind == "reply")
    assert kept.data["partial"]
    assert kept.text.startswith("word-0 word-1 word-2")
    assert said(heard).startswith(kept.text.strip()[:20])


# workers come and go


def test_a_worker_that_is_told_to_end_lets_its_turns_finish(tmp_path: Path) -> None:
    shop = Shop()
    with (
        served(make_app(str(tmp_path / "a.db"), model=slow(0.02), shop=shop)) as client,
        saying(client, ASKED, "req-81") as heard,
    ):
        assert next(heard).kind == "message"
    assert shop.paid == [17], "it was told to end while the turn was under way, and nobody listened"
    with holdfast.open(tmp_path / "a.db") as hf:
        whole(hf, "alice", ASKED, "One moment, please. ", LONG)


HANGS = """
import sys, time
from examples import fastapi_worker

async def pay_back(self, order):
    with open("paid.txt", "a") as file:
        file.write(f"{order}\\n")
    if "hang" in sys.argv:
        time.sleep(60)

fastapi_worker.Shop.pay_back = pay_back
fastapi_worker.main()
"""


@contextmanager
def process(folder: Path, *how: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client]]:
    """The worker in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HANGS, *how]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
                wait_for(lambda: _answers(client))
                yield running, client
        finally:
            running.kill()


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/openapi.json").status_code == 200
    except httpx2.TransportError:
        return False


def test_what_a_killed_worker_left_is_taken_up_by_the_next_which_asks_before_it_pays_again(tmp_path: Path) -> None:
    with process(tmp_path, "hang") as (worker, client):
        with saying(client, ASKED, "req-81") as heard:
            assert next(heard).kind == "message"
        wait_for((tmp_path / "paid.txt").is_file)
        worker.kill()
    with process(tmp_path) as (worker, client):
        asked = wait_for(lambda: [one for one in heard_after(client, "0.0") if one.kind == "question"])
        assert asked[0].text == "refund(17) may have run. Run again?"
        answered = client.post(f"/questions/{asked[0].data['question']}", json={"approve": False})
        assert answered.json() == {"answered": True}
        rest = wait_for(lambda: [one for one in heard_after(client, asked[0].id) if one.kind == "done"])
        assert len(rest) == 1
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) in (0, -signal.SIGTERM), "uvicorn passes the signal on when it has ended"
    assert (tmp_path / "paid.txt").read_text() == "17\n"
    with holdfast.open(tmp_path / "agent.db") as hf:
        whole(hf, "alice", ASKED, DONE)


# killed


class Mortal(Shop):
    async def pay_back(self, order: int) -> None:
        deadly("pay_back", lambda: self.paid.append(order))


def test_what_the_endpoint_does_is_killed_everywhere() -> None:
    async def run(hf: holdfast.AsyncHoldfast, shop: Shop) -> None:
        agent = fastapi_worker.support(hf, shop, fastapi_worker.SCRIPT)
        async for _ in fastapi_worker.work(agent, "alice", ASKED, "req-81"):
            pass

    def check(hf: holdfast.Holdfast, shop: Shop) -> None:
        assert shop.paid == [17]
        whole(hf, "alice", ASKED, DONE)

    killed(run, world=Mortal, check=check, answer=careful(lambda shop: shop.paid, "order 17 is paid back"))
