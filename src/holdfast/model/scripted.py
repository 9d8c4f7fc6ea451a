"""Scripted: a model that follows a script, for tests, demos and benchmarks. No network, no key, no randomness.

The answer depends only on the request. So a process that was killed and restarted gets the same answer to the same
request from a new Scripted: nothing counts how often it was asked.

    Scripted(["Hello."])                                   every turn gets this answer
    Scripted([call("refund", order=17), "Done."])          a tool call, then a text; the same in every turn
    Scripted({"refund": [call("refund", order=17), "Done."], "hello": "Hi."}, otherwise="Pardon?")
    Scripted(lambda pack: f"I was shown {len(pack.messages)} messages.")
    Scripted()                                             repeats what it was told: see `echo`

A **script** is a list of replies for one turn. The next one is read off the conversation: its index is the number of
assistant messages since the newest user message. In a mapping, the first rule whose words occur in that message
provides the script. A **reply** is a text, a `call`, a list of texts and calls made together, a `Message`, a
`ModelReply` with its own usage, an error to raise, or a function of the pack that returns one of these.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.core.lazy import lazy_pattern
from holdfast.core.values import to_plain
from holdfast.core.wire.calls import json_text, result_content
from holdfast.core.wire.openai_chat import read_messages
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.records.messages import Delta, Message, ModelCall, ModelReply, RenderablePack, ToolCallRequest
from holdfast.records.packs import ConversationSlice
from holdfast.records.usage import Usage

REQUESTS_KEPT: Final = 100
"""The number of requests kept for inspection: each holds its pack."""
CHARS_PER_TOKEN: Final = 4
_PIECES: Final = lazy_pattern(r"\s*\S+\s*|\s+")
_CALL_REQUEST: Final = lazy_pattern(r"\s*call\s+([\w.-]+)\s*(\{.*\})?\s*", re.IGNORECASE | re.DOTALL)

DeltaCallback = Callable[[Delta], None]
Script = Callable[[Any], Any] | tuple[Any, ...]


def call(name: str, /, **arguments: Any) -> ToolCallRequest:
    """Return a tool call to use as a reply: `call("refund", order=17)`."""
    return ToolCallRequest(name=name, arguments=msgspec.json.encode(to_plain(arguments)).decode())


class Scripted:
    """A model that follows a script. The module describes scripts and replies.

    `pause` is the number of seconds to wait after each word. `requests` holds the newest requests, for tests to
    inspect.
    """

    def __init__(
        self, replies: Any = None, *, name: str = "scripted", otherwise: Any = None, pause: float = 0.0
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidValue("A model's name is text. Give one, or none.")
        self._name, self._pause = name, pause
        self._rules = _parse_rules(replies, otherwise)
        self.requests: deque[ModelCall] = deque(maxlen=REQUESTS_KEPT)

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self._name

    async def reply(self, asked: ModelCall, say: DeltaCallback | None = None) -> ModelReply:
        """Return the script's reply to this request."""
        self.requests.append(asked)
        seen = read_pack(asked.pack)
        said = self._next_reply(seen)
        if callable(said) and not isinstance(said, type):
            said = said(asked.pack)
            said = _check_reply(await said if inspect.isawaitable(said) else said)
        if isinstance(said, BaseException | type):
            partial = getattr(said, "partial", "")
            if isinstance(partial, str) and partial:
                await stream_message(Message(role="assistant", content=partial), say, self._pause)
            # A copy, since callers add notes to the error they catch, and it is raised again in another turn.
            raise copy.copy(said) if isinstance(said, ModelFailed) else said
        made = said if isinstance(said, ModelReply) else _build_reply(said, seen, self._name)
        await stream_message(made.message, say, self._pause)
        return made

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _next_reply(self, seen: ScriptInput) -> Any:
        text = seen.user.casefold()
        script = next((script for words, script in self._rules if words in text), None)
        if script is None:
            raise ModelFailed(
                f"No rule of {self._name} has words that are in {seen.user!r:.80}. Add one, or give otherwise=….",
                kind="rejected",
            )
        if not isinstance(script, tuple):
            return script
        if seen.reply_count >= len(script):
            raise ModelFailed(
                f"The script of {self._name} has no reply number {seen.reply_count + 1} to {seen.user!r:.80}. "
                "Add it, or give a function of the pack.",
                kind="rejected",
            )
        return script[seen.reply_count]


# The request


class ScriptInput(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a pack that a script depends on."""

    messages: tuple[Message, ...]
    user: str
    """The newest message of a user."""
    reply_count: int
    """The assistant's messages since then, without those that were cut off."""
    tokens: int


def read_pack(pack: RenderablePack) -> ScriptInput:
    """Read a pack for the script. Only its conversation counts, so that evidence is not taken for a user's words."""
    talk = getattr(pack, "conversation", None)
    if isinstance(talk, ConversationSlice):
        messages = talk.messages
    else:
        messages = tuple(read_messages(pack.to_openai()["messages"]).messages)
    users = [at for at, message in enumerate(messages) if message.role == "user" and not message.synthetic]
    newest = users[-1] if users else -1
    since = [message for message in messages[newest + 1 :] if message.role == "assistant"]
    tokens = getattr(pack, "tokens", None)
    return ScriptInput(
        messages=messages,
        user=messages[newest].text if users else "",
        reply_count=sum(not message.partial and not message.synthetic for message in since),
        tokens=tokens if isinstance(tokens, int) else -(-len(json_text(pack.to_openai())) // CHARS_PER_TOKEN),
    )


def echo(pack: RenderablePack) -> str | ToolCallRequest:
    """Reply without a model: repeat the message and report the pack; `call refund {"order": 17}` calls a tool."""
    seen = read_pack(pack)
    results = [result_content(last, one) for last in seen.messages[-1:] for one in last.tool_results]
    if results:
        return "\n".join(f"The tool said: {result}" for result in results)
    tools = [tool["function"]["name"] for tool in pack.to_openai().get("tools", ()) if "function" in tool]
    wanted = _CALL_REQUEST.fullmatch(seen.user)
    if wanted is not None and wanted[1] in tools:
        return ToolCallRequest(name=wanted[1], arguments=wanted[2] or "{}")
    more = f' Say "call {tools[0]} {{…}}" to have a tool called: {", ".join(tools)}.' if tools else ""
    return f"You said: {seen.user}\n(I was shown {len(seen.messages)} messages, {seen.tokens} tokens.{more})"


# The reply


async def stream_message(message: Message, say: DeltaCallback | None, pause: float = 0.0) -> None:
    """Stream a whole message piece by piece, as a provider would."""
    if say is None:
        return
    for piece in _PIECES.findall(message.text):
        say(Delta(text=piece))
        if pause:
            await asyncio.sleep(pause)
    for each in message.tool_calls:
        say(Delta(kind="tool", text=each.name))


def _build_reply(said: Any, seen: ScriptInput, name: str) -> ModelReply:
    parts = said if isinstance(said, list | tuple) else [said]
    if isinstance(said, Message):
        message = said
    else:
        texts = [part for part in parts if isinstance(part, str)]
        calls = tuple(_to_call(part) for part in parts if not isinstance(part, str))
        message = Message(role="assistant", content="".join(texts) if texts else None, tool_calls=calls)
    length = len(message.text) + sum(len(each.name) + len(each.arguments) for each in message.tool_calls)
    usage = Usage(input=seen.tokens, output=-(-length // CHARS_PER_TOKEN), model=name)
    return ModelReply(message=message, usage=usage)


def _to_call(part: Any) -> ToolCallRequest:
    if isinstance(part, ToolCallRequest):
        return part
    given = part["arguments"]
    text = given if isinstance(given, str) else msgspec.json.encode(to_plain(given)).decode()
    return ToolCallRequest(name=part["name"], arguments=text)


# Reading a script


def _parse_rules(replies: Any, otherwise: Any) -> list[tuple[str, Script]]:
    """Return pairs of words and the script for messages with these words; the empty text matches every message."""
    if replies is None and otherwise is None:
        return [("", echo)]
    rules: list[tuple[str, Script]] = []
    if isinstance(replies, Mapping) and not _is_call(replies):
        for words, script in replies.items():
            if not isinstance(words, str):
                raise InvalidValue(f"The rules of a script begin with words, not with {words!r:.40}.")
            rules.append((words.casefold(), _parse_script(script)))
    elif replies is not None:
        rules.append(("", _parse_script(replies)))
    if otherwise is not None:
        rules.append(("", _parse_script(otherwise)))
    return rules


def _parse_script(given: Any) -> Script:
    """Parse a script: a function answers everything, a list is one turn, anything else is a turn's only reply."""
    if callable(given) and not isinstance(given, type):
        return given  # type: ignore[no-any-return]
    return tuple(map(_check_reply, given)) if isinstance(given, list | tuple) else (_check_reply(given),)


def _check_reply(reply: Any) -> Any:
    """Return a reply if it is a valid one; refuse it otherwise."""
    if isinstance(reply, str | ToolCallRequest | BaseException) or _is_call(reply):
        return reply
    if isinstance(reply, type) and issubclass(reply, BaseException):
        return reply
    message = reply.message if isinstance(reply, ModelReply) else reply
    if isinstance(message, Message) and message.role == "assistant":
        return reply
    parts = reply if isinstance(reply, list | tuple) else ()
    if parts and all(isinstance(part, str | ToolCallRequest) or _is_call(part) for part in parts):
        return reply
    if callable(reply) and not isinstance(reply, type):
        return reply
    raise InvalidValue(
        f"{reply!r:.80} is no reply. Give a text, call(name, …), a list of these, an assistant's Message, a "
        "ModelReply, an error to raise, or a function of the pack."
    )


def _is_call(given: object) -> bool:
    if not isinstance(given, Mapping) or set(given) != {"name", "arguments"} or not isinstance(given["name"], str):
        return False
    return isinstance(given["arguments"], str | Mapping)
