"""Operations of a walk over sessions that change what was said: taken back, branched, pinned, made shorter."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.messages import Message
from tests.model import sessions_look as look
from tests.model.sessions_model import Line, No, Note, Said, Spec
from tests.model.sessions_ops import STRANGE, THREADS, append, predicted, touched
from tests.model.sessions_walk import Walk


def _some_message(walk: Walk, line: Line) -> str:
    """A message of the line, or sometimes one that is not, or no longer, part of it."""
    if not line.said or walk.random.random() < 0.08:
        elsewhere = [said.id for talk in walk.talks.values() for each in talk.lines.values() for said in each.said]
        return walk.random.choice([STRANGE, *elsewhere])
    recent = line.said[-8:] if walk.random.random() < 0.6 else line.said
    return walk.random.choice(recent).id


def rewind(walk: Walk) -> None:
    id, talk, line = walk.pick()
    message, keeps = _some_message(walk, line), walk.random.random() < 0.6

    def plan() -> int:
        return talk.open_line(line.name).index(message) + keeps

    count, refused = predicted(plan)
    if refused == {"SessionClosed"}:
        refused |= {"MessageNotFound"}
    session = walk.session(id, line.name)
    place = {"to": message} if keeps else {"before": message}
    gone = walk.attempt(f"rewind {id}/{line.name} {place} → {count}", refused, lambda: session.rewind(**place))
    if gone is not None:
        assert gone == len(line.said) - count
        line.rewind(count)
        touched(walk, id, line)


def fork(walk: Walk) -> None:
    id, talk, line = walk.pick()
    at = None if walk.random.random() < 0.3 else _some_message(walk, line)
    name = walk.random.choice(THREADS[1:])

    def plan() -> Line:
        if name == line.name:
            raise No("InvalidValue")
        if talk.status in ("closing", "closed") and not line.fresh:
            raise No("SessionClosed")
        if name in talk.lines:
            raise No("InvalidValue")
        return line.fork(name, len(line.said) if at is None else line.index(at) + 1)

    made, refused = predicted(plan)
    session = walk.session(id, line.name)
    what = f"fork {id}/{line.name} at {at} as {name}"
    if walk.attempt(what, refused, lambda: session.fork(at, thread=name)) is not None:
        talk.add(made, walk.clock.now_ms())
        touched(walk, id, made)
        touched(walk, id, line)


def pin(walk: Walk) -> None:
    id, talk, line = walk.pick()
    message, pinned = _some_message(walk, line), walk.random.random() < 0.7

    def plan() -> Said:
        said = line.said[line.index(message)]
        if said.home != line.name:
            raise No("Unsupported")
        talk.open_line(line.name)
        return said

    said, refused = predicted(plan)
    session = walk.session(id, line.name)
    act = session.pin if pinned else session.unpin
    found = walk.attempt(f"pin={pinned} {id}/{line.name} {message}", refused, lambda: act(message))
    if found is not None:
        said.pinned = pinned
        assert look.seen(found) == look.told(said)
        touched(walk, id, line)


# making shorter


def compact(walk: Walk) -> None:
    id, talk, line = walk.pick()
    keep, whole = walk.random.choice((0, 1, 2, 3, 5)), walk.random.random() < 0.2
    text = walk.random.choice((f"S{walk.steps}", f"S{walk.steps}", f"S{walk.steps}" * 30, " ", ""))

    def plan() -> list[Said]:
        if line.ended and line.fresh:
            return []  # What comes next begins anew.
        old = talk.open_line(line.name).old(keep, whole)
        if old and not text.strip():
            raise No("SummaryFailed")
        return old

    old, refused = predicted(plan)
    session = walk.session(id, line.name)
    arrives = walk.random.random() < 0.3 and bool(old) and not refused

    def summarise(messages: Sequence[Message]) -> str:
        if arrives:
            append(walk, id, talk, line, [Spec("user", walk.word())], None)
        return text

    what = f"compact {id}/{line.name} keep={keep} whole={whole} {text[:6]!r}"
    made = walk.attempt(what, refused, lambda: session.compact(keep, whole=whole, summarizer=summarise))
    if not refused:
        assert (made is None) == (not old), f"{made} for {[said.text for said in old]}"
    if made is not None:
        line.notes = [note for note in line.notes if note.home != line.name or not set(note.said) <= set(old)]
        note = Note(made.id, line.name, text, tuple(old))
        line.notes.append(note)
        walk.notes.append((id, line.name, note))
        assert made.messages == len(old)
        touched(walk, id, line)


def expand(walk: Walk) -> None:
    """Any summary that was ever made gives its originals back, also when it no longer stands for them."""
    if walk.notes:
        id, thread, note = walk.random.choice(walk.notes)
        walk.note(f"expand {note.text[:6]} in {id}/{thread}")
        found = walk.session(id, thread).compaction.expand(note.id)
        assert [look.seen(message) for message in found] == [look.told(said) for said in note.said]
