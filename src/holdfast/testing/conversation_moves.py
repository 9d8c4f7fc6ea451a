"""What happens within one line: said, called, answered, taken back, pinned, counted, summarised, shown to a model.

Each move writes the drafts that a client would, and notes in the line what is true afterwards.
"""

from __future__ import annotations

from random import Random

from holdfast.ports import Ids
from holdfast.records.events import conversations as said
from holdfast.records.events.calls import ContextPacked, LeftOut, PackedPiece
from holdfast.records.events.envelope import Content, Draft, Facts
from holdfast.records.events.journal import ReasonContent
from holdfast.records.ids import ulid_text
from holdfast.records.usage import Usage
from holdfast.testing.conversation_lines import Covering, Said, ToldLine
from holdfast.testing.stories import WORDS

TOKENIZERS = ("o200k_base", "cl100k_base")


class Telling:
    """Where a story's drafts go: by stream, with the versions that they will have."""

    def __init__(self, random: Random, ids: Ids, subjects: tuple[str, ...]) -> None:
        self.random = random
        self._ids = ids
        self._subjects = subjects
        self.versions: dict[str, int] = {}
        self.written: dict[str, list[Draft]] = {}
        self.pinned: set[tuple[str, int]] = set()

    def write(self, stream: str, type: str, facts: Facts, content: Content | None = None, id: str | None = None) -> int:
        """One more event of the commit at hand; gives its version."""
        subject = self.random.choice(self._subjects) if self._subjects and content is not None else None
        draft = Draft(type=type, facts=facts, content=content, subject=subject, id=id)
        self.written.setdefault(stream, []).append(draft)
        self.versions[stream] = self.versions.get(stream, 0) + 1
        return self.versions[stream]

    def ulid(self) -> str:
        """A new id."""
        return ulid_text(self._ids.ulid())

    def text(self) -> str:
        """A few words."""
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, 6)))

    def happens(self, share: float) -> bool:
        """True in this share of cases."""
        return self.random.random() < share


def say(telling: Telling, line: ToldLine) -> None:
    """A message without calls."""
    role = telling.random.choice(("user", "user", "assistant", "system", "developer"))
    content = said.MessageContent(text=telling.text())
    if role == "user" and telling.happens(0.2):
        content = said.MessageContent(parts=[{"type": "text", "text": telling.text()}], name="ann")
    _append(telling, line, role, content, partial=role == "assistant" and telling.happens(0.2))


def call(telling: Telling, line: ToldLine) -> None:
    """One to three calls in one message. Providers use their ids again."""
    count = telling.random.randint(1, 3)
    calls = tuple((telling.ulid(), telling.random.choice((None, "call_1", "call_2"))) for _ in range(count))
    entries = [{"name": "search", "arguments": '{"q":"x"}'} for _ in calls]
    _append(telling, line, "assistant", said.MessageContent(text=telling.text(), tool_calls=entries), calls=calls)


def answer(telling: Telling, line: ToldLine) -> None:
    """Results of one or more calls of one message, at once or late, in any order."""
    waiting = list(line.calls.values())
    chosen = [telling.random.choice(waiting)]
    beside = [one for one in waiting if line.round_of(one.id) == line.round_of(chosen[0].id) and one != chosen[0]]
    chosen += telling.random.sample(beside, telling.random.randint(0, len(beside)))
    entries = [{"result": telling.text()} for _ in chosen]
    answers = tuple(one.id for one in chosen)
    failed = tuple(id for id in answers if telling.happens(0.2))
    _append(telling, line, "tool", said.MessageContent(tool_results=entries), answers=answers, failed=failed)


def _append(
    telling: Telling,
    line: ToldLine,
    role: str,
    content: said.MessageContent,
    *,
    calls: tuple[tuple[str, str | None], ...] = (),
    answers: tuple[str, ...] = (),
    failed: tuple[str, ...] = (),
    partial: bool = False,
) -> None:
    known, pinned = telling.happens(0.9), telling.happens(0.1)
    # A call that was made in another stream has no place in this one: its result begins a round.
    first = line.calls[answers[0]].version if answers else 0
    facts = said.MessageAppended(
        role=role,
        position=len(line.said) + 1,
        round=first if first > 0 else None,
        before=line.newest,
        tokens=telling.random.randint(3, 60) if known else None,
        tokenizer=TOKENIZERS[0] if known else None,
        calls=calls,
        answers=answers,
        failed=failed,
        partial=partial,
        synthetic=bool(failed) and telling.happens(0.5),
        policy="pinned" if pinned else None,
        usage=_usage(telling) if role == "assistant" else None,
    )
    version = telling.write(line.stream, "message.appended", facts, content)
    if pinned:
        telling.pinned.add((line.stream, version))
    round = (line.stream, first if first > 0 else version)
    line.say(Said(stream=line.stream, version=version, round=round, calls=calls, answers=answers))


def _usage(telling: Telling) -> Usage:
    return Usage(
        input=telling.random.randint(1, 900),
        cached_input=telling.random.choice((0, 100)),
        cache_write=telling.random.choice((0, 20)),
        output=telling.random.randint(0, 300),
        reasoning=telling.random.choice((0, 7)),
        cost=telling.random.choice((None, 12_345)),
        model="gpt-5-mini",
    )


def rewind(telling: Telling, line: ToldLine) -> None:
    """The newest messages, or all, are taken back."""
    keep = max(0, len(line.said) - telling.random.choice((1, 2, 3, telling.random.randint(1, len(line.said)))))
    facts = line.rewind(keep, telling.versions[line.stream])
    telling.write(line.stream, "message.retracted", facts, ReasonContent(reason=telling.text()))


def pin(telling: Telling, line: ToldLine) -> None:
    """A message is kept, or no longer."""
    place, pinned = telling.random.choice(line.mine).place, telling.happens(0.7)
    telling.write(line.stream, "message.pinned", said.MessagePinned(version=place[1], pinned=pinned))
    (telling.pinned.add if pinned else telling.pinned.discard)(place)


def count(telling: Telling, line: ToldLine) -> None:
    """Some messages are counted by a tokenizer, perhaps again."""
    versions = tuple(one.version for one in telling.random.sample(line.mine, min(3, len(line.mine))))
    counts = tuple(telling.random.randint(3, 60) for _ in versions)
    facts = said.TokensCounted(tokenizer=telling.random.choice(TOKENIZERS), versions=versions, counts=counts)
    telling.write(line.stream, "tokens.counted", facts)


def summarise(telling: Telling, line: ToldLine) -> None:
    """Words for what has none yet, or for everything, in place of earlier ones; if there is nothing, one says more."""
    covered = line.covered()
    ends = [end for end in line.ends_of_rounds() if end > covered]
    if not ends:
        say(telling, line)
        return
    whole, last = telling.happens(0.4), telling.random.choice(ends)
    first = 0 if whole else covered
    stretches = line.stretches(first, last)
    own = stretches.pop() if stretches[-1].stream == line.stream else said.Stretch(line.stream, 0, 0)
    facts = said.SummaryMade(
        summary=telling.ulid(),
        first=own.first,
        last=own.last,
        at_version=telling.versions[line.stream],
        messages=last - first,
        tokens=telling.random.randint(3, 60),
        tokenizer=TOKENIZERS[0],
        shared=tuple(stretches),
        replaces=tuple(one.version for one in line.own) if whole else (),
    )
    version = telling.write(line.stream, "summary.made", facts, said.SummaryContent(text=telling.text()))
    made = Covering(stream=line.stream, version=version, first=first, last=last)
    line.own = [made] if whole else [*line.own, made]


def pack(telling: Telling, line: ToldLine) -> None:
    """A model is about to be shown the newest messages; the pack names the one before it."""
    shown, id = line.mine[-telling.random.randint(1, 5) :], telling.ulid()
    pieces = [
        PackedPiece(kind="conversation", id=f"m{one.version}", stream=one.stream, first=one.version, last=one.version)
        for one in shown
    ]
    facts = ContextPacked(
        pack=id,
        call=id,
        digest=telling.random.randbytes(32).hex(),
        level="moderate",
        layout="stable",
        tokenizer=TOKENIZERS[0],
        exact=True,
        renderer=1,
        settings="00" * 8,
        budget=1_000,
        asked=telling.random.choice((1_000, 2_000)),
        used=telling.random.randint(1, 1_000),
        window_stream=line.stream,
        window_start=shown[0].version,
        manifest=tuple(pieces),
        left_out=(LeftOut(id="h1", kind="evidence", why="no_room"),) if telling.happens(0.3) else (),
        truncated=len(line.said) - len(shown),
        before=line.packed,
    )
    line.packed = telling.write(line.stream, "context.packed", facts, id=id)
