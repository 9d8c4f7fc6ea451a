"""Append messages to the end of a thread in one commit, all or none.

Messages are prepared first: redacted, large and binary bodies stored as artifacts, tokens counted once.
Everything that can be refused is refused before anything is written. A cost that is unknown is left out and never fails
a call: an exception or an invalid amount from the prices is warned about once per client.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import encode
from holdfast.core.numbers import is_number
from holdfast.core.sessions.message_events import (
    CallAnswer,
    MessageDraft,
    append_messages,
    begin_generation,
    is_reset,
    message_content,
    shorten_id,
)
from holdfast.core.sessions.tokens import Framing, count_label, framing_of, message_tokens
from holdfast.core.trust import ROLE_TRUST, TRUSTED_LEVELS
from holdfast.core.values import exception_text, to_plain
from holdfast.errors import InvalidMessage, InvalidValue, NotFound, TooLarge
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.frames.read import find_frame_stream, frame_thread, load_current_state
from holdfast.flow.journal import artifacts as journal_artifacts
from holdfast.flow.journal import redact
from holdfast.flow.journal.append import States, decide_and_append, load_state
from holdfast.flow.sessions import read
from holdfast.flow.sessions.read import MESSAGE_TYPES, decode_messages, session_stream
from holdfast.ports import Env, Tokenizer
from holdfast.ports.capabilities import ARTIFACTS, require
from holdfast.records.batches import Artifact
from holdfast.records.compaction import priority_of
from holdfast.records.events.envelope import Draft, Event, SealedEvent
from holdfast.records.events.sessions import MessageAppended, ThreadOpened
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Message, ModelInfo, Part
from holdfast.records.reports import Progress
from holdfast.records.scope import SCOPES_CACHED, parse_scope
from holdfast.records.sessions import ThreadState
from holdfast.records.usage import Usage
from holdfast.system import warn_caller


def thread_tokenizer(env: Env, stream: str, model: str | None = None) -> tuple[Tokenizer, ModelInfo]:
    """Return the tokenizer and the model info used to count a thread's tokens."""
    session = load_state(env, resolve_session_stream(env, stream)).session
    info = env.models.info(model or (None if session is None else session.model))
    name = None if session is None or model is not None else session.tokenizer
    return env.models.tokenizer(name or info.tokenizer), info


def resolve_session_stream(env: Env, stream: str) -> str:
    """Return the session stream of a thread; for a frame's private thread, of the session its actor works in."""
    frame = _find_frame(stream)
    return session_stream(stream if frame is None else find_frame_stream(env, frame))


@lru_cache(maxsize=SCOPES_CACHED)
def _find_frame(stream: str) -> str | None:
    """Return the frame whose private thread a stream is, if it is one."""
    return parse_scope(stream).get("frame")


MAX_COST = 2**62
_warned_prices: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Price functions that failed and were warned about."""
APPEND_TRIES = 100
"""Attempts to append. Concurrent appends do not invalidate each other, so a conflict is simply retried."""


class SessionWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Events for the session's stream, written in the same commit as messages to one of its threads."""

    drafts: Callable[[StreamState], list[Draft]]
    artifacts: tuple[Artifact, ...] = ()
    model: str | None = None
    """The model that the session will have, used for counting."""


def append_to_thread(
    env: Env,
    stream: str,
    messages: Sequence[Message],
    *,
    key: str | None = None,
    policy: str | None = None,
    progress: Progress | None = None,
    session_write: SessionWrite | None = None,
    author: str | None = None,
) -> tuple[list[Message], bool]:
    """Append messages to the end of a thread, all or none; return them as stored, and True if the key was used before.

    `session_write` goes to the session in the same commit; `author` is the live frame that appends, if any.
    """
    if not messages:
        raise InvalidMessage("There is nothing to append. Pass a message, or a list of at least one.")
    tokenizer, info = thread_tokenizer(env, stream, None if session_write is None else session_write.model)
    preparing = MessagePreparer(env, tokenizer, framing_of(info.provider, info.name))
    prepared = preparing.prepare(messages, policy=policy, progress=progress)
    rules = _ThreadAppend(env, stream, prepared.entries, session_write, author)
    streams = (stream,) if author is None else (stream, find_frame_stream(env, author))
    placed = prepared.artifacts if session_write is None else (*prepared.artifacts, *session_write.artifacts)
    changed = decide_and_append(
        env,
        streams,
        rules.decide,
        key=key,
        same=rules.matches,
        needs=rules.needs,
        artifacts=placed,
        tries=APPEND_TRIES,
    )
    if changed.repeated:
        events = [event for event in changed.events if isinstance(event, Event) and event.type in MESSAGE_TYPES]
        pins = {(event.stream, event.version) for event in events if event.facts.policy == "pinned"}
        return decode_messages(env, events, pins), True
    # Built from the prepared messages, without reading them back.
    start = len(changed.facts) - len(messages)
    facts, ids = [], []
    for event in changed.events[start:]:
        assert isinstance(event, SealedEvent), "what this call appended is not read back"
        facts.append(event.facts_record)
        ids.append(ulid_text(event.id))
    return build_stored_messages(stream, prepared, facts, ids, changed.version + start, changed.at), False


def draft_messages(
    env: Env, stream: str, state: StreamState, entries: Sequence[MessageDraft]
) -> tuple[list[Draft], list[Draft], list[Draft]]:
    """Return the drafts before the messages in their thread, the messages, and the drafts for their session."""
    if not entries:
        return [], [], []
    thread, over = state.thread or ThreadState(), is_reset(state, stream)
    # Load the session afresh: if another thread restarted it already, this commit leaves its stream alone.
    before, anew = begin_generation(thread, load_current_state(env, session_stream(stream))) if over else ([], [])
    return before, append_messages(thread, state.version + len(before), entries), anew


class _ThreadAppend(msgspec.Struct, frozen=True):
    """The decision of one append to a thread."""

    env: Env
    stream: str
    entries: tuple[MessageDraft, ...]
    session_write: SessionWrite | None
    author: str | None

    def needs(self, states: States) -> Sequence[str]:
        """Return the session's stream if it must be loaded as well."""
        thread = states[self.stream].thread  # Refuse nothing here: these states may be cached. Only `decide` refuses.
        if self.session_write is None and (thread is None or not thread.ended):
            return ()
        session = session_stream(self.stream)
        return (session,) if session != self.stream else ()

    def decide(self, states: States) -> dict[str, list[Draft]]:
        """Return the drafts for the thread, and for its session if there are any."""
        stream, state, session_write = self.stream, states[self.stream], self.session_write
        session = session_stream(stream)
        if self.author is not None:
            check_live(self.env, load_current_state(self.env, find_frame_stream(self.env, self.author)), self.author)
            if state.thread is None and session == stream:  # A frame's private thread is opened by its first message.
                opened = Draft(type="thread.opened", facts=ThreadOpened(private=True))
                return {stream: [opened, *append_messages(ThreadState(), state.version + 1, self.entries)]}
        before, said, anew = draft_messages(self.env, stream, state, self.entries)
        drafts = {stream: [*before, *said]}
        own = anew if session_write is None else [*anew, *session_write.drafts(states[session])]
        return {**drafts, session: own} if own else drafts

    def matches(self, events: list[Event]) -> bool:
        """Return True if the events stored under the key hold these messages, as far as they are not erased."""
        said = [event for event in events if event.type == "message.appended"]
        return len(said) == len(self.entries) and all(
            event.facts.role == entry.facts.role and (not event.content or event.content == entry.content)
            for event, entry in zip(said, self.entries, strict=True)
        )


def build_stored_messages(
    stream: str, prepared: AppendBatch, appended: Sequence[MessageAppended], ids: Sequence[str], version: int, at: int
) -> list[Message]:
    """Return prepared messages as they are stored from `version` on, with their facts and ids filled in."""
    found = []
    for given, facts, id in zip(prepared.messages, appended, ids, strict=True):
        message = given
        if facts.calls or facts.answers:
            calls = zip(given.tool_calls, facts.calls, strict=True)
            results = zip(given.tool_results, facts.answers, strict=True)
            message = replace(
                given,
                tool_calls=tuple([replace(call, id=own) for call, (own, _) in calls]),
                tool_results=tuple([replace(result, tool_call_id=own) for result, own in results]),
            )
        found.append(
            replace(
                message,
                id=id,
                stream=stream,
                version=version,
                timestamp=at,
                round=facts.round or version,
                tokens=facts.tokens,
                tokenizer=facts.tokenizer,
                pinned=facts.policy == "pinned",
                policy=None if facts.policy == "pinned" else facts.policy,
                trust=ROLE_TRUST.get(message.role, "external"),
            )
        )
        version += 1
    return found


SMALL_TEXT_BYTES = 4_000
"""Texts up to this size stay in the event even if the message as a whole is large."""


class AppendBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages ready to be journaled, with the artifacts written along with them."""

    messages: tuple[Message, ...]
    entries: tuple[MessageDraft, ...]
    artifacts: tuple[Artifact, ...]


class MessagePreparer(msgspec.Struct):
    """The preparer of messages for one append. All refusals happen here, before anything is written."""

    env: Env
    tokenizer: Tokenizer
    framing: Framing
    frame: str | None = None
    """The turn that the messages belong to, if any."""
    call: str | None = None
    """The model call that an assistant's message answers."""
    placed: dict[str, Artifact] = msgspec.field(default_factory=dict)
    given: dict[str, str] = msgspec.field(default_factory=dict)
    """The new ids of calls, by the ids they were given with."""
    most: int = 0
    """The bytes of text that stay in the event of the message at hand."""

    def prepare(
        self, messages: Sequence[Message], *, policy: str | None = None, progress: Progress | None = None
    ) -> AppendBatch:
        """Prepare every message; on an error, withdraw the artifacts stored so far."""
        trust = self.env.trust
        if trust not in TRUSTED_LEVELS and any(ROLE_TRUST.get(message.role) == "operator" for message in messages):
            raise InvalidMessage(f"A message with trust {trust} cannot have the role system. Append it as user.")
        kept, entries = [], []
        try:
            for number, message in enumerate(messages, 1):
                ready, entry = self._prepare_one(message, policy)
                kept.append(ready)
                entries.append(entry)
                if progress is not None and number % 100 == 0:
                    progress(number, len(messages))
        except BaseException:
            journal_artifacts.withdraw_artifacts(self.env, tuple(self.placed.values()))
            raise
        return AppendBatch(messages=tuple(kept), entries=tuple(entries), artifacts=tuple(self.placed.values()))

    def _prepare_one(self, message: Message, policy: str | None) -> tuple[Message, MessageDraft]:
        settings = self.env.settings
        if policy is None:
            policy = "pinned" if message.pinned else message.policy
        if message.tool_results and not all(isinstance(one.result, str) for one in message.tool_results):
            plain = [replace(one, result=_to_plain(one.result)) for one in message.tool_results]
            message = replace(message, tool_results=tuple(plain))
        if message.usage is not None:
            message = replace(message, usage=add_cost(self.env, message.usage, message.model))
        if self.env.redact is not None:
            message = redact.redact_message(self.env.redact, message)
        size, most = _count_characters(message), settings.inline_text_bytes
        if size > settings.message_bytes:
            raise TooLarge(
                f"The message has about {size:,} bytes of text; {settings.message_bytes:,} are allowed. "
                "Attach it as a file, split it, or raise HOLDFAST_MESSAGE_BYTES."
            )
        # Many small texts can be large together.
        self.most = min(SMALL_TEXT_BYTES, most) if size > most else most
        named: list[str] = []
        tokens = message_tokens(message, self.tokenizer.count, self.framing)
        if message.tool_results and any(isinstance(one.result, list) for one in message.tool_results):
            message = self._place_result_parts(message, named)
        stored, large = message, dict[int, str]()
        if isinstance(message.content, list) or size * 6 > self.most:  # As JSON, a character may take six bytes.
            message, stored = self._place_parts(message, named)
            for index, one in enumerate(message.tool_results):
                # Other oversized results are refused when the event is sealed.
                if isinstance(one.result, str) and self._is_large(one.result):
                    large[index] = self._place(_utf8(one.result), named)
        calls = self._number_calls(message) if message.tool_calls else ()
        answers = []
        for one in message.tool_results:
            id = self.given.get(one.tool_call_id, one.tool_call_id)
            answers.append(CallAnswer(id, shorten_id(one.provider_id), one.is_error))
        if policy is not None:
            priority_of(policy)  # It refuses an unknown policy.
        facts = MessageAppended(
            role=message.role,
            calls=calls,
            tokens=tokens,
            tokenizer=count_label(self.tokenizer.name, self.framing),
            partial=message.partial,
            synthetic=message.synthetic,
            policy=None if policy == "normal" else policy,
            model=message.model,
            provider=message.provider,
            usage=message.usage,
            frame=self.frame,
            call=self.call if message.role == "assistant" else None,
            artifacts=tuple(dict.fromkeys(named)),
        )
        return message, MessageDraft(facts=facts, content=message_content(stored, large), answers=tuple(answers))

    def _number_calls(self, message: Message) -> tuple[tuple[str, str | None], ...]:
        """Return a new id for each tool call, with the provider's."""
        calls = tuple((ulid_text(self.env.ids.ulid()), shorten_id(call.provider_id)) for call in message.tool_calls)
        # Results in the same list may refer to a call by the id it was given with.
        self.given.update({call.id: id for call, (id, _) in zip(message.tool_calls, calls, strict=True) if call.id})
        return calls

    def _place(self, body: bytes, named: list[str]) -> str:
        placed = journal_artifacts.prepare_artifact(self.env, body)
        name = placed.name.hex()
        self.placed[name] = placed
        named.append(name)
        return name

    def _place_parts(self, message: Message, named: list[str]) -> tuple[Message, Message]:
        """Return the message as the caller gets it back, and as it is stored: with large texts as artifacts."""
        content = message.content
        if content is None or isinstance(content, str):
            if content is None or not self._is_large(content):
                return message, message
            part = {"type": "text", "artifact": self._place(_utf8(content), named), "whole": True}
            return message, replace(message, content=[part])
        shown, stored = [], []
        for part in content:
            given = self._place_bytes(part, named)
            shown.append(given)
            text = given.get("text")
            large = given.get("type") == "text" and isinstance(text, str) and self._is_large(text)
            stored.append({"type": "text", "artifact": self._place(_utf8(str(text)), named)} if large else given)
        return replace(message, content=shown), replace(message, content=stored)

    def _place_bytes(self, part: Part, named: list[str]) -> Part:
        known = part.get("artifact")
        if isinstance(known, str) and part.get("type") in ("image", "file"):
            try:
                raw = bytes.fromhex(known)
            except ValueError:
                raise NotFound(f"{known!r:.80} is not the name of an artifact.") from None
            require(self.env.journal, ARTIFACTS).artifact(self.env.tenant, raw)  # It refuses an unknown one.
            named.append(known)
        data = part.get("data")
        if not isinstance(data, bytes | bytearray | memoryview):
            return part
        rest = {name: item for name, item in part.items() if name != "data"}
        # Keep the size: a file's tokens are estimated from it wherever the body is not at hand.
        return {**rest, "artifact": self._place(bytes(data), named), "size": len(data)}

    def _place_result_parts(self, message: Message, named: list[str]) -> Message:
        """Store images and files in tool results as artifacts."""
        results = []
        for one in message.tool_results:
            parts = one.result
            if isinstance(parts, list):
                parts = [self._place_bytes(part, named) if isinstance(part, dict) else part for part in parts]
            results.append(replace(one, result=parts))
        return replace(message, tool_results=tuple(results))

    def _is_large(self, text: str) -> bool:
        """Return True if a text must be an artifact. Measured as JSON, where a character may take six bytes."""
        return len(text) * 6 > self.most and len(msgspec.json.encode(text)) > self.most


def _count_characters(message: Message) -> int:
    """Count the characters of all text: close enough to bytes to refuse what is far too large."""
    content = message.content
    if isinstance(content, str) and not message.tool_calls and not message.tool_results:
        return len(content)
    texts: list[Any] = [content, *[one.result for one in message.tool_results]]
    texts += [part.get("text") for part in content] if isinstance(content, list) else []
    texts += [text for call in message.tool_calls for text in (call.arguments, call.name)]
    return sum([len(text) for text in texts if isinstance(text, str)])


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("Text holds a lone surrogate, which is not Unicode. Clean the text first.") from None


def _to_plain(result: Any) -> Any:
    """Convert a result of the caller's own type to plain data."""
    if isinstance(result, str):
        return result
    if isinstance(result, bytes | bytearray | memoryview):
        raise InvalidMessage("A tool's result is text or plain data, not bytes. Return a file part, or decode it.")
    if isinstance(result, list) and any(isinstance(part, dict) and "data" in part for part in result):
        return result
    found = to_plain(result)
    try:
        encode(found)
    except InvalidValue as error:
        raise InvalidMessage(f"A tool's result cannot be stored: {error}") from None
    return found


def is_reported(usage: Usage) -> bool:
    """Return True if a call reported usage. A call that reports no tokens at all is not known to be free."""
    return bool(usage.input or usage.output or usage.cached_input or usage.cache_write)


def add_cost(env: Env, usage: Usage, model: str | None) -> Usage:
    """Return a call's usage with its cost, if the cost is not set and can be determined.

    An estimate is good enough for a token budget but not for a bill: it gets no cost.
    """
    if usage.cost is not None or usage.estimated or env.prices is None or not is_reported(usage):
        return usage
    try:
        cost = env.prices(model, usage)
        if cost is None:
            return usage
        if is_number(cost, least=0, most=MAX_COST):
            return replace(usage, cost=cost)
        why = f"they gave {cost!r:.40}"
    except Exception as error:  # noqa: BLE001  it is not our code
        why = exception_text(error)
    if env.prices not in _warned_prices:
        _warned_prices.add(env.prices)
        warn_caller(f"The prices that this client was given failed, so that some costs are not known: {why}")
    return usage


def append_frame_messages(
    env: Env, frame_id: str, messages: Sequence[Message], *, key: str | None = None, policy: str | None = None
) -> list[Message]:
    """Append messages to a frame's thread, all or none, and return them as stored. The first starts its thread."""
    thread = frame_thread(env, frame_id)
    return append_to_thread(env, thread, messages, key=key, policy=policy, author=frame_id)[0]


def read_frame_messages(env: Env, frame_id: str, limit: int | None = None) -> list[Message]:
    """Return the newest messages of a frame's thread, oldest first; none if nobody has opened it yet."""
    if limit is not None and not is_number(limit, least=0):
        raise InvalidValue(f"limit must be a number of messages, not {limit!r}.")
    thread = frame_thread(env, frame_id)
    if load_current_state(env, thread).thread is None:
        return []
    return read.read_messages(env, thread, limit=limit)
