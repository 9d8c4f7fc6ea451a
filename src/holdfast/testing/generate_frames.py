"""Random but valid histories of frames, as drafts, for replay, crash and speed tests.

The generator tracks the live frames and writes only what the rules allow, so that folding, projecting and loading
can be compared over any number of events.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.ports import Ids
from holdfast.records.events import calls as event_calls
from holdfast.records.events import frames
from holdfast.records.events.envelope import Content, Draft, Facts
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE, FrameLimits
from holdfast.records.ids import ulid_text
from holdfast.records.usage import Usage

WORDS = ("plan", "search", "refund", "order 17", "née", "東京", "🙂", "allergic to nuts", "tool output")
MAX_LIVE = 8


class _LiveFrame(msgspec.Struct):
    """The generator's record of a live frame."""

    id: str
    parent: str | None
    depth: int
    granted: int
    children: int = 0
    used: int = 0
    usage: Usage = Usage()
    handles: list[str] = []
    removed: list[tuple[str, ...]] = []
    results: int = 0
    calls: list[tuple[str, str]] = []
    question: str | None = None
    reserved: dict[str, int] = {}
    away: list[tuple[str, int]] = []


class FrameGenerator:
    """A generator of the frames of one stream. Content belongs to a random one of `subjects`."""

    def __init__(self, random: Random, ids: Ids, subjects: tuple[str, ...] = ()) -> None:
        self._random = random
        self._ids = ids
        self._subjects = subjects
        self._live: dict[str, _LiveFrame] = {}
        self._removals = 0

    def step(self) -> list[Draft]:
        """Return the next change, as a list of one draft."""
        return [self._make_change()]

    def _make_change(self) -> Draft:
        frame = self._random.choice(list(self._live.values())) if self._live else None
        if frame is None or (len(self._live) < MAX_LIVE and self._random.random() < 0.2):
            return self._push(frame)
        if frame.question is not None:
            return self._continue_question(frame)
        moves = [self._spend, self._reserve, self._attach, self._add_result, self._begin_call, self._update]
        moves += [self._suspend, self._lend]
        moves += [self._settle] if frame.away else []
        moves += [self._detach] if frame.handles else []
        moves += [self._end_call] if frame.calls else []
        moves += [] if frame.children or frame.away else [self._pop, self._pop]
        return self._random.choice(moves)(frame)

    def _make_draft(self, type: str, facts: Facts, content: Content | None = None) -> Draft:
        subject = self._random.choice(self._subjects) if self._subjects and content is not None else None
        return Draft(type=type, facts=facts, content=content, subject=subject)

    def _new_ulid(self) -> str:
        return ulid_text(self._ids.ulid())

    def _random_text(self) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(self._random.randint(1, 6)))

    def _random_usage(self) -> Usage:
        return Usage(
            input=self._random.randint(1, 900),
            cached_input=self._random.choice((0, 100)),
            output=self._random.randint(0, 300),
            cost=self._random.choice((None, 12_345)),
        )

    def _push(self, parent: _LiveFrame | None) -> Draft:
        nested = parent is not None and parent.question is None and parent.depth < 3 and self._random.random() < 0.7
        outer = parent if nested else None
        frame = _LiveFrame(
            id=self._new_ulid(),
            parent=None if outer is None else outer.id,
            depth=0 if outer is None else outer.depth + 1,
            granted=self._random.randint(0, 5000),
        )
        if outer is not None:
            outer.children += 1
        self._live[frame.id] = frame
        facts = frames.FramePushed(
            frame=frame.id,
            parent=frame.parent,
            depth=frame.depth,
            granted=frame.granted,
            limits=FrameLimits(tool_calls=self._random.randint(1, 50), timeout_ms=self._random.choice((None, 1000))),
            deadline=self._random.choice((None, 1_800_000_000_000)),
        )
        return self._make_draft("frame.pushed", facts, frames.GoalContent(goal=self._random_text(), inputs={"n": 1}))

    def _spend(self, frame: _LiveFrame) -> Draft:
        usage = self._random_usage()
        purpose = self._random.choice([*frame.reserved, None])
        part = 0 if purpose is None else min(frame.reserved[purpose], usage.spent)
        if purpose is not None:
            frame.reserved[purpose] -= part
        self._add_usage(frame, usage)
        facts = frames.FrameSpent(frame=frame.id, usage=usage, purpose=purpose, from_reserved=part)
        return self._make_draft("frame.spent", facts)

    def _add_usage(self, frame: _LiveFrame, usage: Usage) -> None:
        frame.usage = frame.usage + usage
        frame.used += usage.spent

    def _reserve(self, frame: _LiveFrame) -> Draft:
        purpose = self._random.choice(("reply", "tools"))
        held = frame.reserved.get(purpose, 0)
        amount = -held if held and self._random.random() < 0.5 else self._random.randint(1, 500)
        frame.reserved[purpose] = held + amount
        return self._make_draft("frame.reserved", frames.FrameReserved(frame=frame.id, purpose=purpose, amount=amount))

    def _attach(self, frame: _LiveFrame) -> Draft:
        again = frame.handles and self._random.random() < 0.2
        handle = self._random.choice(frame.handles) if again else f"h{len(frame.handles)}"
        if not again:
            frame.handles.append(handle)
        facts = frames.HandleAdded(
            frame=frame.id,
            handle=handle,
            kind="tool_output",
            priority=self._random.choice(list(PRIORITY_SCORE.values())),
            position=len(frame.handles),
            tokens=self._random.choice((None, 40)),
        )
        return self._make_draft("frame.handle_added", facts, frames.HandleContent(description=self._random_text()))

    def _detach(self, frame: _LiveFrame) -> Draft:
        if frame.removed and self._random.random() < 0.4:
            *names, removal = frame.removed.pop()
            facts = frames.HandlesRestored(frame=frame.id, handles=tuple(names), removal=removal)
            return self._make_draft("frame.handles_restored", facts)
        names = self._random.sample(frame.handles, self._random.randint(1, len(frame.handles)))
        self._removals += 1
        removal = f"r{self._removals}"
        frame.removed.append((*names, removal))
        if self._random.random() < 0.5:
            compacted = frames.FrameCompacted(
                frame=frame.id, compaction=removal, strategy="priority", level="aggressive", removed=tuple(names)
            )
            return self._make_draft("frame.compacted", compacted)
        gone = frames.HandlesRemoved(frame=frame.id, handles=tuple(names), removal=removal)
        return self._make_draft("frame.handles_removed", gone, ReasonContent(reason=self._random_text()))

    def _add_result(self, frame: _LiveFrame) -> Draft:
        frame.results += 1
        facts = frames.ResultAdded(frame=frame.id, position=frame.results, kind="text", ref=f"ref{frame.results}")
        return self._make_draft("frame.result_added", facts, frames.OutcomeContent(summary=self._random_text()))

    def _begin_call(self, frame: _LiveFrame) -> Draft:
        call, kind = self._new_ulid(), self._random.choice(("model", "tool", "run"))
        frame.calls.append((call, kind))
        content = event_calls.CallContent(arguments={"q": self._random_text()})
        facts: Facts
        if kind == "model":
            shown = self._random.choice((None, self._random.randbytes(32).hex()))
            pack = None if shown is None else self._new_ulid()
            facts = event_calls.ModelRequested(
                call=call, frame=frame.id, model="gpt-5-mini", pack=pack, context_hash=shown
            )
        elif kind == "tool":
            facts = event_calls.ToolRequested(call=call, frame=frame.id, name="search")
        else:
            facts = event_calls.RunRequested(call=call, frame=frame.id, name="step")
        return self._make_draft(f"{kind}.requested", facts, content)

    def _end_call(self, frame: _LiveFrame) -> Draft:
        call, kind = frame.calls.pop(self._random.randrange(len(frame.calls)))
        failed = self._random.random() < 0.3
        content = event_calls.CallContent(value=self._random_text())
        if kind != "model":
            record = event_calls.RunReturned if kind == "run" else event_calls.ToolReturned
            return self._make_draft(f"{kind}.returned", record(call=call, frame=frame.id, failed=failed), content)
        usage = self._random_usage()
        self._add_usage(frame, usage)
        if failed:
            broke = event_calls.CallFailed(call=call, frame=frame.id, error="timeout", usage=usage)
            return self._make_draft("model.failed", broke, content)
        answered = event_calls.ModelResponded(call=call, frame=frame.id, usage=usage, finish="stop")
        return self._make_draft("model.responded", answered, content)

    def _lend(self, frame: _LiveFrame) -> Draft:
        child, granted = self._new_ulid(), self._random.randint(0, 500)
        frame.away.append((child, granted))
        facts = frames.ChildPushed(frame=frame.id, child=child, child_stream="actor/elsewhere", granted=granted)
        return self._make_draft("child.pushed", facts)

    def _settle(self, frame: _LiveFrame) -> Draft:
        child, granted = frame.away.pop(self._random.randrange(len(frame.away)))
        usage = self._random_usage()
        self._add_usage(frame, usage)
        facts = frames.ChildSettled(
            frame=frame.id,
            child=child,
            status="completed",
            granted=granted,
            usage=usage,
            used=usage.spent,
            wakes_parent=not frame.away and not frame.children,
        )
        return self._make_draft("child.settled", facts)

    def _update(self, frame: _LiveFrame) -> Draft:
        facts = frames.FrameUpdated(
            frame=frame.id,
            limits=self._random.choice((None, FrameLimits(depth=2))),
            context_hash=self._random.choice((None, "ab" * 32)),
            texts=True,
        )
        return self._make_draft("frame.updated", facts, frames.GoalContent(goal=self._random_text()))

    def _suspend(self, frame: _LiveFrame) -> Draft:
        frame.question = self._new_ulid()
        facts = frames.FrameSuspendedFacts(
            frame=frame.id,
            question=frame.question,
            kind="approval",
            prior="waiting" if frame.children or frame.away else "active",
            parent=frame.parent,
            call=self._random.choice((None, self._new_ulid())),
            within=self._random.choice((None, self._new_ulid())),
            released=frame.granted if frame.parent is not None else 0,
            token=self._random.choice((None, self._random.randbytes(32).hex())),
        )
        return self._make_draft("frame.suspended", facts, frames.QuestionContent(reason=self._random_text()))

    def _continue_question(self, frame: _LiveFrame) -> Draft:
        assert frame.question is not None
        move = self._random.choice(("answer", "reissue", "resume"))
        if move == "answer":
            answered = frames.QuestionAnswered(frame=frame.id, question=frame.question, via="id", approved=True)
            return self._make_draft("question.answered", answered, frames.AnswerContent(note=self._random_text()))
        if move == "reissue":
            token = self._random.randbytes(32).hex()
            reissued = frames.QuestionReissued(frame=frame.id, question=frame.question, token=token)
            return self._make_draft("question.reissued", reissued)
        facts = frames.FrameResumed(
            frame=frame.id,
            question=frame.question,
            status="waiting" if frame.children or frame.away else "active",
            parent=frame.parent,
            reserved_again=frame.granted if frame.parent is not None else 0,
        )
        frame.question = None
        return self._make_draft("frame.resumed", facts)

    def _pop(self, frame: _LiveFrame) -> Draft:
        del self._live[frame.id]
        parent = None if frame.parent is None else self._live[frame.parent]
        wakes = False
        if parent is not None:
            parent.children -= 1
            parent.usage, parent.used = parent.usage + frame.usage, parent.used + frame.used
            wakes = not parent.children and not parent.away and parent.question is None
        facts = frames.FramePopped(
            frame=frame.id,
            status=self._random.choice(("completed", "failed", "cancelled")),
            parent=frame.parent,
            granted=frame.granted if parent is not None else 0,
            usage=frame.usage,
            used=frame.used,
            wakes_parent=wakes,
        )
        return self._make_draft("frame.popped", facts, frames.OutcomeContent(summary=self._random_text()))
