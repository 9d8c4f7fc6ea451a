"""`holdfast chat`: what is typed, what is shown, what is asked; and that a killed terminal goes on."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import admin, chat_session
from holdfast.cli.chat_session import parse_answer
from holdfast.cli.main import main
from holdfast.flow.turns import limits
from holdfast.model import http
from holdfast.records.recovery import QuestionInfo
from holdfast.runtime.agent import Agent
from tests.model_server import Fault, model_server

from .terminals import CTRL_C, CTRL_D, Terminal
from .test_cli import Result, assert_one_clear_line

Chat = Callable[..., Result]

SHOP = '''
import time
from pathlib import Path

from holdfast import ToolCall, tool

HERE = Path(__file__).parent


def wrote(name: str, line: str) -> None:
    with (HERE / name).open("a") as file:
        file.write(f"{line}\\n")


@tool
def refund(order: int, amount: int, call: ToolCall) -> str:
    """Pay an order back. It takes as long as there is a file that says so."""
    wrote("paid.txt", f"{order} {amount}")
    call.progress("the bank was asked")
    while (HERE / "slow").exists():
        time.sleep(0.01)
    return f"paid {amount}"


@tool
def colour(call: ToolCall) -> str:
    """Ask for a colour."""
    return f"It is {call.ask('Which colour?', options=['red', 'blue']).payload}."


@tool
def name(call: ToolCall) -> str:
    """Ask for anything."""
    return f"It is {call.ask('What is its name?').payload}."


@tool
def nap(seconds: float, call: ToolCall) -> str:
    """Sleep without a process that waits."""
    call.sleep(seconds)
    return "rested"


@tool
def broken() -> str:
    """Never works."""
    raise ValueError("no \\x1b[31m such thing")


@tool(needs_approval=True)
def gate(door: int) -> str:
    """Open a door."""
    return f"door {door} is open"


TOOLS = [refund, colour, name, nap, broken, gate]
'''
REFUND = 'call refund {"order": 17, "amount": 240}'
TORN = "? refund(17, 240) may have run. Run again? [yes/no]"
LONG = " ".join(f"word{number}" for number in range(60))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with tools in it, and no key in the environment."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    (tmp_path / "shop_of_chat.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "shop_of_chat", raising=False)
    return tmp_path


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """A chat that lines are piped into."""

    def call(*lines: str, arguments: tuple[object, ...] = ()) -> Result:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", *map(str, arguments)])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def shop(chat: Chat) -> Chat:
    """The same, with the tools of the shop."""
    return lambda *lines: chat(*lines, arguments=("--tools", "shop_of_chat:TOOLS"))


def said(thread: str = "main") -> list[tuple[str, str, bool]]:
    with holdfast.open("agent.db") as hf:
        found = hf.session("chat", thread=thread, create=False).messages()
    return [(message.role, message.text, message.partial) for message in found if not message.tool_results]


def paid(folder: Path) -> int:
    file = folder / "paid.txt"
    return file.read_text(encoding="utf-8").count("\n") if file.exists() else 0


# in a pipe


def test_lines_are_answered_one_by_one_and_nothing_is_coloured(chat: Chat) -> None:
    result = chat("hello", "", "//quit is a word", "/quit", "never")
    assert re.findall(r"You said: (.*)", result.out) == ["hello", "/quit is a word"]
    assert result.code == 0
    assert "\x1b" not in result.out + result.err
    assert "A scripted model answers without an API key" in result.err
    assert [text for role, text, _ in said() if role == "user"] == ["hello", "/quit is a word"]


def test_what_was_said_is_shown_when_it_is_started_again(chat: Chat) -> None:
    chat("one", "two")
    result = chat()
    assert [line for line in result.out.splitlines() if line.startswith(("> ", "You"))] == [
        "> one",
        "You said: one",
        "> two",
        "You said: two",
    ]
    assert chat("three", arguments=("--session", "other")).out.count("You said") == 1


def test_arguments_say_where_and_how(chat: Chat) -> None:
    chat(arguments=("b.db", "--session", "s", "--system", "Be terse.", "--say", "hi", "--say", "/quit", "--say", "no"))
    with holdfast.open("b.db") as hf:
        session = hf.session("s", create=False)
        assert (session.details.system, session.model, len(session)) == ("Be terse.", "scripted", 2)
    result = chat("hi", arguments=("b.db", "--tenant", "acme", "--thread", "side"))
    assert result.code == 0
    with holdfast.open("b.db") as hf:
        assert hf.tenant("acme").session("chat", thread="side", create=False).messages()[0].text == "hi"


def test_a_tool_that_wants_a_yes_gets_it(chat: Chat) -> None:
    result = chat("remember that I like tea", "/stack", "hm", "yes")
    asked = "? remember(I like tea): may it run? [yes/no]\n"
    assert result.out.count(asked) == 2, "what is said meanwhile joins the turn, and the question is shown again"
    assert "  suspended  " in result.out
    assert "← Kept: I like tea\n" in result.out
    assert result.code == 0
    with holdfast.open("agent.db") as hf:
        assert [entry.value for entry in hf.state("chat").entries()] == ["I like tea"]
        assert hf.journal.verify().findings == ()
    assert [text for role, text, _ in said() if role == "user"] == ["remember that I like tea", "hm"]


def test_a_no_is_told_to_the_model_with_its_reason(shop: Chat) -> None:
    result = shop('call gate {"door": 3}', "/answer no it is night", 'call gate {"door": 4}', '/answer yes {"door": 5}')
    assert "← error: A person did not allow this call. It was not made. it is night\n" in result.out
    assert "door 5 is open" in result.out
    assert "door 3 is open" not in result.out


def test_questions_of_tools_are_answered_with_words_options_or_json(shop: Chat) -> None:
    result = shop(
        "call colour", "/answer green", "/answer RED", "call name", '/answer {"first": "Ada"}', "/answer more"
    )
    assert "? Which colour? [red/blue]\n" in result.out
    assert "holdfast: Choose one of: red, blue.\n" in result.err
    assert "← It is red.\n" in result.out
    assert "← It is {'first': 'Ada'}.\n" in result.out
    assert "holdfast: No question is open.\n" in result.err


def test_tools_are_shown_with_what_they_do_and_give(shop: Chat) -> None:
    result = shop(REFUND, "call broken", "call nothing {}")
    lines = result.out.splitlines()
    at = lines.index("→ refund(17, 240)")
    assert lines[at + 1 : at + 4] == ["  … the bank was asked", "← paid 240", "The tool said: paid 240"]
    assert "\x1b" not in result.out, "what a tool says must not reach the terminal as it is"
    assert "← error: ValueError: no \\x1b[31m such thing" in result.out


def test_a_tool_that_sleeps_goes_on_with_enter(shop: Chat) -> None:
    result = shop('call nap {"seconds": 900}', "/answer yes", "/stop")
    assert re.search(r"… Sleeping for 900 seconds\. \(rings in 1[45] min.*; press Enter after that\)\n", result.out)
    assert "holdfast: No question is open.\n" in result.err
    assert "← rested\n" in shop('call nap {"seconds": 0.05}', *[""] * 40).out


def test_commands_look_into_the_conversation(chat: Chat) -> None:
    nothing = chat("/pack", "/why x", "/reset", "/stack", "/stop")
    assert nothing.err.count("There are no messages yet.") == 3
    assert "No frame is live." in nothing.err
    assert "No turn is live." in nothing.err
    result = chat("My daughter is allergic to nuts.", "/why allergic to nuts", "/pack", "/pack why", "/help")
    assert "Found in m2" in result.out
    assert "now: shown" in result.out
    assert result.out.count("0 left out") == 2
    assert "the newest round is always shown" in result.out
    assert "/answer yes|no|TEXT|JSON" in result.out


def test_reset_begins_anew_also_while_a_question_is_open(chat: Chat) -> None:
    result = chat("remember that I like tea", "/reset", "/stack", "hello")
    assert "Started a new conversation." in result.err
    assert "No frame is live." in result.err
    assert "messages 1," in result.out
    assert result.code == 0


def test_stop_ends_a_turn_that_waits(chat: Chat) -> None:
    result = chat("remember that I like tea", "/stop", "/stack", "hello")
    assert "Stopped.\n" in result.err
    assert "No frame is live." in result.err
    assert "You said: hello" in result.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nope", "Unknown command /nope."),
        ("/pack all", "Write /pack, or /pack why."),
        ("/why", "Write some words of a message"),
        ("/answer yes", "No question is open."),
    ],
)
def test_what_makes_no_sense_is_one_line_and_the_chat_goes_on(chat: Chat, line: str, words: str) -> None:
    result = chat(line, "hello")
    assert f"holdfast: {words}" in result.err
    assert "Traceback" not in result.err
    assert "You said: hello" in result.out
    assert result.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tools", "nope"), "is not a tool"),
        (("--tools", "nope:x"), "nope cannot be imported"),
        (("--tools", "shop_of_chat:nope"), "has no nope"),
        (("--tools", "shop_of_chat:SHUT"), "has no SHUT"),
        (("--tools", "os:sep"), "is no tool"),
        (("--model", "nope"), "has an unknown provider"),
        ((".",), "."),
    ],
)
def test_what_cannot_begin_is_refused_in_one_line(chat: Chat, arguments: tuple[str, ...], words: str) -> None:
    result = chat("hello", arguments=arguments)
    assert_one_clear_line(result, 2, words)


def test_a_model_that_cannot_be_called_is_one_line_and_the_turn_stays(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chat("hello", "/stop", arguments=("--model", "openai:gpt-5-mini"))
    (line,) = [line for line in result.err.splitlines() if line.startswith("holdfast: ")]
    assert "OPENAI_API_KEY" in line
    assert "The turn is still live. Press Enter to continue it, or type /stop to end it." in result.err
    assert "Stopped.\n" in result.err
    assert result.code != 0


@pytest.mark.parametrize(
    ("status", "words", "live"),
    [
        (404, "answered 404: Something went wrong. Check the model's name", True),
        (401, "answered 401. No key was sent. Give api_key=…, or set OPENAI_API_KEY.", True),
        (429, "answered 429: Something went wrong, 8 times.", True),
        (400, "The turn was stopped: model: rejected: The model gpt-5-mini gave no answer: it answered 400", False),
        (None, ", 8 times.", True),  # There is no server.
    ],
)
def test_a_message_without_an_answer_is_one_clear_line_and_no_success(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, status: int | None, words: str, live: bool
) -> None:
    monkeypatch.setattr(http, "compute_retry_delay", lambda *given: 0)
    with model_server([], [Fault(status=status or 500)] * 8) as server:
        arguments = ("--model", f"openai:gpt-5-mini@{server.url}", "--say", "hello")
        result = chat(arguments=arguments) if status else None
    result = result or chat(arguments=arguments)
    (line,) = [line for line in result.err.splitlines() if line.startswith("holdfast: ")]
    assert words in line
    assert (result.code, result.out, "The turn is still live." in result.err) == (2, "", live)


def test_a_turn_that_a_limit_stops_is_no_success(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FAILURES", 0)
    result = chat(arguments=("--say", "hello"))
    assert "holdfast: The turn was stopped: model: failed 0 times in a row." in result.err
    assert result.code == 2


@pytest.mark.parametrize(
    ("variables", "model"),
    [
        ({}, "scripted"),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic:claude-sonnet-4-5"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "openai:gpt-5-mini"),
        ({"OPENAI_API_KEY": "k", "HOLDFAST_MODEL": "scripted"}, "scripted"),
    ],
)
def test_the_environment_chooses_the_model(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], model: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert f"chat in agent.db, model {model}. " in chat().err
    assert admin._find_unknown_variables() == []


# answers


def question(**known: Any) -> QuestionInfo:
    every: dict[str, Any] = {**dict.fromkeys(QuestionInfo.__struct_fields__), **known}
    return QuestionInfo(**every)


def test_answers_are_read_as_they_are_meant() -> None:
    torn, plain = question(call="C", options=["run again", "do not"]), question(options=["approve", "deny"])
    for words in ("yes", " Y ", "run again", "Approve"):
        assert parse_answer(torn, words) == {"approve": True}
    for words in ("no", "N", "do not", "DENY"):
        assert parse_answer(plain, words) == {"approve": False}
    assert parse_answer(torn, 'no {"receipt": 1}') == {"approve": False, "payload": {"receipt": 1}}
    assert parse_answer(torn, "no receipt R-1") == {"approve": False, "payload": "receipt R-1"}
    assert parse_answer(plain, 'yes {"amount": 1}') == {"approve": True, "args": {"amount": 1}}
    assert parse_answer(question(), "[1, 2]") == {"payload": [1, 2]}
    assert parse_answer(question(), "some words") == {"payload": "some words"}


@pytest.mark.parametrize("words", ["", "maybe", "yes please", "yes [1]", "42", "{}"])
def test_a_torn_call_is_never_run_again_by_an_unclear_answer(words: str) -> None:
    with pytest.raises(holdfast.errors.InvalidValue):
        parse_answer(question(call="C", options=["run again", "do not"]), words)


# at a terminal


def test_a_reply_comes_word_by_word_and_ctrl_c_stops_it(folder: Path) -> None:
    with Terminal(folder, "chat") as terminal:
        terminal.until("> ")
        terminal.line(LONG)
        terminal.until("You said: ")
        first = terminal.until("word9 ")
        assert "word40" not in first
        terminal.keys(CTRL_C)
        rest = terminal.until("Stopped. The text shown so far is kept in the conversation.\n")
        assert "word59" not in rest
        terminal.until("> ")
        terminal.line("hello")
        terminal.until("You said: hello\n")
        terminal.until("> ")
        terminal.keys(CTRL_C)
        assert terminal.ended() == 0
    (_, kept, stopped) = said()[1]
    assert stopped
    assert kept.startswith("You said: word0 ")
    assert not kept.endswith("word59")
    assert "Shown to this script: messages 3," in said()[3][1], "the model is shown what was kept"


def test_a_terminal_killed_in_the_middle_of_a_reply_goes_on(folder: Path) -> None:
    with Terminal(folder, "chat") as terminal:
        terminal.until("> ")
        terminal.line(LONG)
        terminal.until("You said: word0 ")
        terminal.kill()
    with Terminal(folder, "chat") as terminal:
        assert terminal.until("Continuing an interrupted turn.\n").count("> word0 ") == 1
        assert terminal.until("word59\n").startswith("You said: word0 ")
        terminal.until("messages 1,")
        terminal.until("> ")
        terminal.keys(CTRL_D)
        assert terminal.ended() == 0
    assert [(role, partial) for role, _, partial in said()] == [("user", False), ("assistant", False)]


def test_a_terminal_killed_in_the_middle_of_a_tool_asks_first(folder: Path) -> None:
    (folder / "slow").touch()
    with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as terminal:
        terminal.until("> ")
        terminal.line(REFUND)
        terminal.until("… the bank was asked\n")
        terminal.kill()
    (folder / "slow").unlink()
    with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as terminal:
        shown = terminal.until(TORN)
        assert shown.count("→ refund(17, 240)\n") == 1
        assert shown.count(f"> {REFUND}\n") == 1
        terminal.line("is it done?")
        assert "→ refund" not in terminal.until(TORN), "nothing is shown twice, and nothing runs"
        terminal.line("/answer maybe")
        terminal.until("Answer yes or no.")
        terminal.line('/answer no {"receipt": "R-17"}')
        terminal.until('← {"receipt":"R-17"}\n')
        terminal.until("> ")
        terminal.line("/quit")
        assert terminal.ended() == 0
    assert paid(folder) == 1
    with holdfast.open("agent.db") as hf:
        assert list(hf.questions()) == []
        assert hf.journal.verify().findings == ()


def test_ctrl_c_stops_a_tool_and_does_not_wait_for_its_thread(folder: Path) -> None:
    (folder / "slow").touch()
    with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as terminal:
        terminal.until("> ")
        terminal.line(REFUND)
        terminal.until("… the bank was asked\n")
        terminal.keys(CTRL_C)
        terminal.until("It may or may not have taken effect.\n")
        terminal.until("Stopped.\n")
        terminal.until("> ")
        terminal.keys(CTRL_D)
        assert terminal.ended() == 0
    assert paid(folder) == 1


def test_ctrl_c_twice_leaves() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed: list[object] = []

    def press_twice() -> None:
        with chat_session._stop_on_interrupt(pressed.append):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            press_twice()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(pressed) == 1


def test_what_another_terminal_does_is_waited_for_and_shown(folder: Path) -> None:
    (folder / "slow").touch()
    with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as first:
        first.until("> ")
        first.line(REFUND)
        first.until("… the bank was asked\n")
        with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as second:
            assert second.until("Continuing an interrupted turn.\n").count("→ refund(17, 240)\n") == 1
            (folder / "slow").unlink()
            first.until("The tool said: paid 240\n")
            assert "→" not in second.until("← paid 240\nThe tool said: paid 240\n")
            second.until("> ")
    assert paid(folder) == 1


# planted bugs


def torn(folder: Path) -> None:
    """Leave a torn refund behind."""
    (folder / "slow").touch()
    with Terminal(folder, "chat", "--tools", "shop_of_chat:TOOLS") as terminal:
        terminal.until("> ")
        terminal.line(REFUND)
        terminal.until("… the bank was asked\n")
    (folder / "slow").unlink()


def test_it_would_be_noticed_if_any_words_were_a_yes(folder: Path, shop: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    torn(folder)
    assert TORN in shop("/answer maybe").out
    assert paid(folder) == 1
    monkeypatch.setattr(chat_session, "YES", (*chat_session.YES, "maybe"))
    shop("/answer maybe")
    assert paid(folder) == 2


def test_it_would_be_noticed_if_things_were_shown_twice(shop: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    shop('call gate {"door": 1}')
    assert shop("hm").out.count("> call gate") == 1
    monkeypatch.setattr(chat_session.ChatScreen, "_is_new", lambda self, id: True)
    monkeypatch.setattr(Agent, "stream", lambda agent, session, *given, **how: agent.tail(session))
    assert shop("hm").out.count("> call gate") > 1


def test_it_would_be_noticed_if_a_stopped_turn_were_a_success(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_session.ChatScreen, "_stopped", lambda self, event: None)
    with pytest.raises(AssertionError):
        test_a_turn_that_a_limit_stops_is_no_success(chat, monkeypatch)
