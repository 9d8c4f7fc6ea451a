"""MCP servers as sources of tools: a real server over stdio and over HTTP, its hints, its failures and its end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ArgumentsUnfit, EffectFailed, InvalidValue, ToolFailed, ToolTimedOut
from holdfast.runtime.tools import mcp as mcp_tools
from holdfast.runtime.tools.mcp import McpServer
from holdfast.runtime.tools.result import build_outcome, failure_text
from holdfast.runtime.tools.sources import load_tools
from holdfast.runtime.tools.tool import AnyTool

PROGRAM = str(Path(__file__).with_name("mcp_program.py"))
COMMAND = [sys.executable, PROGRAM]


async def unused(work: Callable[[], Any]) -> Any:
    raise AssertionError(f"{work} is async and needs no thread")


def called(tool: AnyTool, **arguments: Any) -> Any:
    return tool.run(arguments, None, unused)


class Shop:
    """One server for all tests that do not end it, on a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = McpServer(command=COMMAND, env={"SHOP": "corner"}, cwd=folder, prefix="shop_")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def tools(self) -> dict[str, AnyTool]:
        found: dict[str, AnyTool] = self.run(load_tools([self.server]))
        return found

    def close(self) -> None:
        self.run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("shop"))
    yield made
    made.close()


def test_a_servers_tools_have_its_names_its_words_and_its_parameters(shop: Shop) -> None:
    tools = shop.tools()
    look_up = tools["shop_look_up"]
    assert look_up.description == "Look an order up."
    assert look_up.parameters["type"] == "object"
    assert look_up.parameters["properties"]["order"]["description"] == "Which order"
    assert look_up.definition.name == "shop_look_up"
    assert shop.run(called(look_up, **look_up.read('{"order": 5}'))) == "order 5 is paid"


def test_a_name_that_no_provider_takes_is_made_one_and_still_reaches_its_tool(shop: Shop) -> None:
    assert shop.run(called(shop.tools()["shop_odd_name"])) == "odd"


def test_only_tools_that_say_they_can_be_repeated_are_retried_after_a_crash(shop: Shop) -> None:
    ways = {name: tool.if_interrupted for name, tool in shop.tools().items()}
    assert ways["shop_look_up"] == ways["shop_cancel"] == "retry"
    assert ways["shop_pay"] == ways["shop_refuse"] == "ask"
    assert not any(tool.needs_approval for tool in shop.tools().values())


def test_a_server_that_would_be_retried_without_a_hint_is_noticed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "_policy_from_hints", lambda _hints: "retry")
    with pytest.raises(AssertionError):
        test_only_tools_that_say_they_can_be_repeated_are_retried_after_a_crash(shop)


def test_arguments_that_are_missing_are_told_before_the_server_is_asked(shop: Shop) -> None:
    pay = shop.tools()["shop_pay"]
    with pytest.raises(ArgumentsUnfit, match=r"ledger is missing.*\{order: integer; ledger: string\}"):
        pay.read('{"order": 5}')
    with pytest.raises(ArgumentsUnfit, match="not JSON"):
        pay.read('{"order": 5, "led')


def test_what_the_server_itself_refuses_is_a_failure_in_its_words(shop: Shop) -> None:
    tools = shop.tools()
    with pytest.raises(ToolFailed) as refused:
        shop.run(called(tools["shop_refuse"], why="the till is shut"))
    assert "the till is shut" in failure_text(refused.value)
    with pytest.raises(ToolFailed) as unfit:
        shop.run(called(tools["shop_look_up"], order="many"))
    assert "valid integer" in failure_text(unfit.value)
    assert len(failure_text(unfit.value)) < 4_001


def test_pictures_are_shown_and_sounds_are_kept_as_files(shop: Shop) -> None:
    found = build_outcome(shop.run(called(shop.tools()["shop_picture"])))
    assert [part["type"] for part in found.result] == ["text", "image", "text", "text"]
    assert found.result[1] == {"type": "image", "data": b"\x89PNG picture", "media_type": "image/png"}
    assert "audio/wav" in found.result[2]["text"]
    assert "not valid base64" in found.result[3]["text"]
    assert [file.media_type for file in found.files] == ["audio/wav"]


def test_a_server_is_given_its_own_variables_and_folder_and_none_of_ours(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "ours")
    name, secret, folder = shop.run(called(shop.tools()["shop_environment"])).split()
    assert (name, secret) == ("corner", "none")
    assert folder.startswith("shop")


def test_many_calls_go_over_one_connection_at_once(shop: Shop) -> None:
    look_up = shop.tools()["shop_look_up"]

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*(called(look_up, order=one) for one in range(20))))

    assert shop.run(all_of_them()) == [f"order {one} is paid" for one in range(20)]


def test_a_call_that_hangs_is_timed_out_and_the_server_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.server, "_timeout", 0.2)
    tools = shop.tools()
    with pytest.raises(ToolTimedOut, match=r"0\.2 seconds.*may or may not"):
        shop.run(called(tools["shop_hang"]))
    assert shop.run(called(tools["shop_look_up"], order=1)) == "order 1 is paid"


def test_options_are_for_all_tools_or_by_the_servers_names(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.server, "_needs_approval", {"pay": lambda order: order > 5, "cancel": True})
    monkeypatch.setattr(shop.server, "_if_interrupted", {"cancel": "fail"})
    tools = shop.tools()
    assert tools["shop_pay"].requires_approval({"order": 9, "ledger": "x"})
    assert not tools["shop_pay"].requires_approval({"order": 1, "ledger": "x"})
    assert tools["shop_cancel"].needs_approval is True
    assert tools["shop_cancel"].if_interrupted == "fail"
    assert tools["shop_look_up"].if_interrupted == "retry"
    monkeypatch.setattr(shop.server, "_needs_approval", {"pya": True})
    with pytest.raises(InvalidValue, match=r"has no tool pya\. It has cancel"):
        shop.tools()


def test_a_server_that_ends_in_a_call_is_said_to_be_gone_and_the_next_call_finds_it_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = McpServer(command=COMMAND)

    async def in_one_loop() -> list[str]:
        pay = (await load_tools([server]))["pay"]
        with pytest.raises(ToolFailed) as gone:
            await called(pay, order=13, ledger=str(ledger))
        return [failure_text(gone.value), await called(pay, order=14, ledger=str(ledger))]

    async def in_another() -> Any:
        async with server:
            return await called((await load_tools([server]))["pay"], order=15, ledger=str(ledger))

    said, paid = asyncio.run(in_one_loop())
    assert "is gone" in said
    assert "may or may not have taken effect" in said
    assert paid == "paid 14"
    # The loop that it was connected in is closed: it is reached again from this one.
    assert asyncio.run(in_another()) == "paid 15"
    assert ledger.read_text().split() == ["13", "14", "15"]


def test_a_server_that_is_not_there_is_said_so() -> None:
    async def asked(server: McpServer) -> None:
        await server.tools()

    for server, why in (
        (McpServer(command=["/no/such/program"]), "No such file"),
        (McpServer(url="http://127.0.0.1:1/mcp"), "connection attempts failed"),
        (McpServer(command=[sys.executable, "-c", ""]), "Connection closed"),
        (McpServer(command=[sys.executable, "-c", "import sys; sys.stdin.read()"], connect_timeout=0.1), "0.1 seconds"),
    ):
        with pytest.raises(EffectFailed, match=f"cannot be reached.*{why}"):
            asyncio.run(asked(server))


def test_a_tool_whose_server_cannot_be_reached_says_that_it_was_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    server = McpServer(command=["/no/such/program"])
    with pytest.raises(ToolFailed, match=r"cannot be reached.*pay was not called"):
        asyncio.run(server._call_tool("pay", {}))


def test_a_server_over_http_is_reached_at_its_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port)

        async def asked() -> Any:
            async with McpServer(url=f"http://127.0.0.1:{port}/mcp?key=secret", headers={"x-shop": "1"}) as server:
                assert "secret" not in repr(server)
                return await called((await load_tools([server]))["look_up"], order=7)

        assert asyncio.run(asked()) == "order 7 is paid"
    finally:
        process.terminate()
        process.wait(10)


def _await_port(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # Another process begins; there is no clock to move.
    raise AssertionError("the server did not begin")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"command": ["x"], "url": "http://x"},
        {"command": "npx server"},
        {"command": []},
        {"command": [1]},
        {"command": ["x"], "headers": {"a": "b"}},
        {"url": "ftp://x"},
        {"url": "http://x", "cwd": "/"},
    ],
)
def test_a_server_that_is_neither_started_nor_reached_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="Give"):
        McpServer(**given)


def test_without_the_sdk_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['mcp_types'] = None\n"
        "from holdfast.runtime.tools.mcp import McpServer\n"
        "try: McpServer(url='http://x')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Unsupported MCP servers need the SDK. Run: pip install 'holdfast[mcp]'"
