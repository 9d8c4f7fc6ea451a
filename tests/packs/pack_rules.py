"""What every pack must be, whatever it was made of, checked from the outside and by other means than the packer's.

Tokens are counted anew over what is rendered, and by somebody else's tokenizer. Validity is judged by what providers
refuse. What is critical is looked for by its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast import ContextPack, Message
from holdfast.core.packs.window import FLOOR_ROUNDS
from holdfast.core.sessions.tokens import Framing, framing_of, message_tokens, request_tokens
from tests.packs.test_packs_on_data import independent, tokens_of
from tests.packs.worlds import Attached, World
from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

MARKER = re.compile(r"\[… (\d+) characters left out(?:: (\S+))? …\]")


def problems(found: World, pack: ContextPack, **asked: Any) -> list[str]:
    """Everything that is wrong with a pack; `asked` is how it was asked for."""
    return [
        *(f"size: {one}" for one in size_problems(found, pack)),
        *(f"provider: {one}" for one in validity_problems(pack)),
        *(f"critical: {one}" for one in missing_critical(found, pack, **asked)),
        *(f"cut: {one}" for one in silent_cuts(found, pack)),
        *(f"unasked: {one}" for one in shown_unasked(found, pack, **asked)),
        *(f"said: {one}" for one in misreported(found, pack, **asked)),
    ]


# how large it is


def size_problems(found: World, pack: ContextPack) -> Iterator[str]:
    """Over the budget by any count, or counted wrongly."""
    summary = pack.token_summary
    if pack.tokens > pack.budget:
        yield f"{pack.tokens} tokens in a budget of {pack.budget}"
    if (counted := recounted(found, pack)) != pack.tokens:
        yield f"says {pack.tokens}, has {counted}"
    request = dict(pack.to_openai())
    others = independent({**request, "tools": ()}) + tools_by_the_published_rule(request)
    if pack.messages and others > pack.budget:  # Where nothing was said, a provider is told so: that is no context.
        yield f"{others} by another tokenizer in a budget of {pack.budget}"
    if sum(msgspec.structs.asdict(summary.breakdown).values()) != summary.used:
        yield f"{summary.breakdown} does not sum up to {summary.used}"
    if summary.remaining != pack.budget - pack.tokens:
        yield f"remaining {summary.remaining}"


def counting(found: World, pack: ContextPack) -> tuple[Any, Framing]:
    """The tokenizer that a pack names, and what its provider puts around messages."""
    models = found.hf.env.models
    assert models is not None
    info = models.info(pack.model)
    return models.tokenizer(pack.tokenizer).count, framing_of(info.provider, info.name)


def recounted(found: World, pack: ContextPack) -> int:
    """The tokens of the whole request, counted from its messages alone."""
    fresh = [msgspec.structs.replace(message, tokens=None, tokenizer=None) for message in pack.messages]
    return request_tokens(fresh, *counting(found, pack), system=pack.system, tools=pack.tools)


def tools_by_the_published_rule(request: dict[str, Any]) -> int:
    """Tokens of tool definitions without parameters: seven for each with its name and words, twelve at the end."""
    told = [tool["function"] for tool in request.get("tools", ())]
    return sum(7 + tokens_of(f"{one['name']}:{one['description']}") for one in told) + (12 if told else 0)


def validity_problems(pack: ContextPack) -> list[str]:
    """What a provider would refuse."""
    chat = dict(pack.to_openai())
    return [
        *(f"openai {one}" for one in openai_problems(chat["messages"], chat.get("tools", ()))),
        *(f"responses {one}" for one in responses_problems(dict(pack.to_responses()))),
        *(f"anthropic {one}" for one in anthropic_problems(dict(pack.to_anthropic()))),
    ]


# what must be in it


def missing_critical(found: World, pack: ContextPack, **asked: Any) -> Iterator[str]:
    """Critical evidence, pinned messages, the newest round, or a part of the brief that is not there."""
    said = found.messages()
    shown = {message.id for message in pack.messages}
    newest = next((message for message in reversed(said) if message.role != "tool"), None)
    must = [message for message in said if message.pinned or message is newest]
    yield from (f"message {name(found, one)}" for one in must if one.id not in shown)
    words = [message.text for message in pack.messages]
    for one in critical(found, **asked):
        if not any(shows(text, one) for text in words):
            yield f"evidence {one.id}"
    yield from (f"brief {one!r:.30}" for one in found.instructions if one not in (pack.system or ""))
    yield from (f"note {one!r:.30}" for one in found.notes if not any(one in text for text in words))
    if found.goals and not any(found.goals[-1][:8] in text for text in words):
        yield "the last breadcrumb"


def critical(found: World, **asked: Any) -> list[Attached]:
    """Evidence that must be shown: nothing but force excludes it."""
    gone = asked.get("exclude", ()) if asked.get("force_exclude") else ()
    return [one for one in found.attached if one.priority == "critical" and one.id not in gone]


def shows(text: str, one: Attached) -> bool:
    """Whether a text shows evidence, whole, or its ends around a marker that names it and says how much is missing."""
    if one.body in text:
        return True
    marked = next((mark for mark in MARKER.finditer(text) if mark[2] == one.id), None)
    if marked is None:
        return False
    left = len(one.body) - int(marked[1])
    return f"{one.body[: (left + 1) // 2]}{marked[0]}{one.body[len(one.body) - left // 2 :]}" in text


def name(found: World, message: Message) -> str:
    """What a model asks for to read it whole."""
    own = found.session._thread_stream if found.frame is None else found.messages()[-1].stream
    return f"m{message.version}" if message.stream == own else message.id


# what was cut


def silent_cuts(found: World, pack: ContextPack) -> Iterator[str]:
    """Messages that are shown in other words than they were said in, without a marker that names them."""
    said = {message.id: message for message in found.messages()}
    for segment in pack.segments:
        if segment.kind == "breadcrumb":
            continue
        thinned = False
        for message in segment.messages:
            before = said.get(message.id, message)
            thinned |= len(before.tool_calls) > len(message.tool_calls)
            named = [mark[2] for mark in MARKER.finditer(words_of([message]))]
            if not thinned and words_of([before]) != words_of([message]) and name(found, message) not in named:
                yield f"{name(found, message)} in other words, and nothing but {named}"
        if bool(segment.shortened) != (thinned or bool(MARKER.search(words_of(segment.messages)))):
            yield f"{segment.id} has {segment.shortened} characters less"


def words_of(messages: Sequence[Message]) -> str:
    """Everything that messages say, with one blank where there were some."""
    said = [
        (message.content, [call.arguments for call in message.tool_calls], [one.result for one in message.tool_results])
        for message in messages
    ]
    return " ".join(msgspec.json.encode(said).decode().replace("\\n", " ").split())


# what must not be in it


def shown_unasked(found: World, pack: ContextPack, **asked: Any) -> Iterator[str]:
    """What is an ancestor's and was not asked for, and what was excluded."""
    words = "\n".join(message.text for message in pack.messages)
    if len(found.goals) > 1 and "said above" in words:
        yield "the conversation of an ancestor"
    for one in (*found.above, *found.attached):
        excluded = one.id in asked.get("exclude", ()) and (one.priority != "critical" or asked.get("force_exclude"))
        unasked = one in found.above and one.id not in asked.get("include", ())
        if (excluded or unasked) and f"body {one.id}:" in words:
            yield f"evidence {one.id}, which was excluded" if excluded else f"evidence {one.id} of an ancestor"


# what is said about it


def misreported(found: World, pack: ContextPack, **asked: Any) -> Iterator[str]:
    """Handles that are not accounted for: each is shown or left out for a reason, once."""
    fates: dict[str, list[str]] = {}
    for decision in pack.decisions:
        if decision.kind == "evidence":
            fates.setdefault(decision.id, []).append(decision.outcome)
    shown = {one.handle_id for one in pack.evidence}
    for one in found.attached:
        expected = {one.id in shown: ["included", "shortened"]}.get(True, ["omitted"])
        if len(fates.get(one.id, ())) != 1 or fates[one.id][0] not in expected:
            yield f"{one.id} is {'shown' if one.id in shown else 'not shown'}, and said to be {fates.get(one.id)}"
        excluded = one.id in asked.get("exclude", ())
        if one.broken and not excluded and one.id not in pack.metadata.failed:
            yield f"{one.id} failed, and nobody says so"
        refused = excluded and one.priority == "critical" and not asked.get("force_exclude")
        if refused != (one.id in pack.metadata.refused_exclusions):
            yield f"{one.id} among the refused: {not refused}"
    if (hidden := neither_shown_nor_summarised(found, pack)) != pack.conversation.truncated_count:
        yield f"{hidden} messages are not shown, and said to be {pack.conversation.truncated_count}"
    floor = asked.get("min_compaction", "none")
    low = {one.handle_id for one in pack.evidence if one.priority in ("low", "background")}
    if floor in ("aggressive", "critical") and low - {*asked.get("include", ())}:
        yield f"level {pack.level} shows {low}, and the floor is {floor}"
    rounds = sum(one.reason == "window" for one in pack.decisions)
    if rounds >= {"moderate": FLOOR_ROUNDS, "aggressive": FLOOR_ROUNDS, "critical": 1}.get(floor, rounds + 1):
        yield f"level {pack.level} shows {rounds} rounds, and the floor is {floor}"
    wanted = [one for one in asked.get("include", ()) if one == "nobody's"]
    if list(pack.metadata.missing_handles) != wanted:
        yield f"missing {pack.metadata.missing_handles}"


def neither_shown_nor_summarised(found: World, pack: ContextPack) -> int:
    """Messages of the line that a model learns nothing of."""
    shown = {message.id for message in pack.messages}
    covers = [stretch for summary in pack.summaries for stretch in summary.covers]
    return sum(
        message.id not in shown
        and not any(one.stream == message.stream and one.first <= message.version <= one.last for one in covers)
        for message in found.messages()
    )


# what a provider has of it already


def kept_tokens(found: World, before: ContextPack | None, after: ContextPack) -> int:
    """The tokens of the messages that two requests begin with."""
    if before is None or (before.system, before.tools) != (after.system, after.tools):
        return 0
    count, framing = counting(found, after)
    total = request_tokens((), count, framing, system=after.system, tools=after.tools)
    for one, other in zip(before.messages, after.messages, strict=False):
        if _sent(one) != _sent(other):
            break
        total += message_tokens(msgspec.structs.replace(other, tokens=None), count, framing)
    return total


def _sent(message: Message) -> Any:
    return message.role, message.content, message.tool_calls, message.tool_results, message.name
