"""Operations of a walk over sessions: saying and reading. Each asks the model, does it, and looks at the thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import BudgetTooSmall
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from tests.model import sessions_look as look
from tests.model.sessions_life_model import Talk
from tests.model.sessions_model import Line, No, Said, Spec
from tests.model.sessions_walk import Walk

THREADS = ("main", "x", "y", "z")
PROVIDERS = ("p1", "p2", "p3")
STRANGE = "01JXT21Q00YJVQMYHEK2DM60V7"
LONGEST = 90


def predicted(plan: Callable[[], Any]) -> tuple[Any, frozenset[str]]:
    """What the model says: a plan, or the errors with which it would be refused."""
    try:
        return plan(), frozenset()
    except No as refused:
        return None, refused.names


def touched(walk: Walk, id: str, line: Line) -> None:
    """A thread that was just changed, or could have been."""
    if walk.careful:
        look.at_line(walk, id, line)


# saying


def say(walk: Walk) -> None:
    """Words, calls and results in any mixture, one by one or as a list, under a key or not."""
    id, talk, line = walk.pick()
    specs = [_spec(walk, line) for _ in range(walk.random.choice((1, 1, 1, 2, 4)))]
    key = f"k{walk.steps}" if walk.random.random() < 0.3 else None
    if len(line.said) < LONGEST:
        append(walk, id, talk, line, specs, key)


def _spec(walk: Walk, line: Line) -> Spec:
    kind = walk.random.random()
    pinned = walk.random.random() < 0.06
    if kind < 0.45:
        role = walk.random.choice(("user", "user", "assistant", "assistant", "system", "developer"))
        return Spec(role, walk.word(long=walk.random.random() < 0.3), pinned=pinned)
    if kind < 0.7 or not line.waiting:
        calls = [walk.random.choice((*PROVIDERS, None)) for _ in range(walk.random.randint(1, 3))]
        return Spec("assistant", walk.word(), calls=calls, pinned=pinned)
    targets = [_target(walk, line) for _ in range(walk.random.choice((1, 1, 1, 2)))]
    return Spec("tool", walk.word(long=walk.random.random() < 0.2), answers=targets, pinned=pinned)


def _target(walk: Walk, line: Line) -> str:
    """Mostly a call that waits, by our id or the provider's; sometimes one that was answered, or nobody's."""
    if walk.random.random() < 0.06:
        answered = [id for said in line.said for id in said.answers]
        return walk.random.choice([*answered, STRANGE, "nobody's"])
    calls = [(id, provider) for said in line.said for id, provider in said.calls if id in line.waiting]
    id, provider = walk.random.choice(calls)
    return provider if provider is not None and walk.random.random() < 0.5 else id


def append(walk: Walk, id: str, talk: Talk, line: Line, specs: Sequence[Spec], key: str | None) -> None:
    def plan() -> list[Said]:
        if line.ended and not line.fresh:
            raise No("SessionClosed")
        return line.heard(specs)

    new, refused = predicted(plan)
    session = walk.session(id, line.name)
    texts = [spec.text for spec in specs]
    stored = walk.attempt(
        f"append {id}/{line.name} {texts} key={key}", refused, lambda: session.append(_given(specs), key=key)
    )
    if stored is None:
        return
    talk.begin(line, walk.clock.now_ms())
    learn(new, stored)
    line.say(new)
    if key is not None:
        walk.keys[id, line.name, key] = (specs, stored)
    assert [look.seen(message) for message in stored] == [look.told(said) for said in new]
    touched(walk, id, line)


def _given(specs: Sequence[Spec]) -> list[Any]:
    return [_message(spec) for spec in specs]


def _message(spec: Spec) -> Any:
    if spec.role == "tool":
        results = (ToolCallResult(tool_call_id=target, result=spec.text) for target in spec.answers)
        return Message(role="tool", tool_results=tuple(results), pinned=spec.pinned)
    if spec.calls or spec.pinned:
        calls = tuple(ToolCallRequest(name="look_up", provider_id=provider) for provider in spec.calls)
        return Message(role=spec.role, content=spec.text, tool_calls=calls, pinned=spec.pinned)
    return spec.text if spec.role == "user" else {"role": spec.role, "content": spec.text}


def learn(new: Sequence[Said], stored: Sequence[Message]) -> None:
    """The ids that the journal gave, in place of those that the model used for them."""
    names: dict[str, str] = {}
    for said, message in zip(new, stored, strict=True):
        said.id = message.id
        ids = [call.id for call in message.tool_calls]
        names.update(zip((id for id, _ in said.calls), ids, strict=True))
        said.calls = [(names[id], provider) for id, provider in said.calls]
        said.answers = [names.get(id, id) for id in said.answers]


def say_again(walk: Walk) -> None:
    """A key again: with the same words it is the same answer, with others it is refused."""
    if not walk.keys:
        return
    (id, thread, key), (specs, stored) = walk.random.choice(list(walk.keys.items()))
    session = walk.session(id, thread)
    if walk.random.random() < 0.3:
        other = [*specs[:-1], Spec("user", walk.word())]
        walk.attempt(f"reuse {key}", {"KeyReused"}, lambda: session.append(_given(other), key=key))
        return
    again = walk.attempt(f"repeat {key} in {id}/{thread}", (), lambda: session.append(_given(specs), key=key))
    assert [message.id for message in again] == [message.id for message in stored]
    assert [look.seen(message)[:5] for message in again] == [look.seen(message)[:5] for message in stored]
    touched(walk, id, walk.talks[id].lines[thread])


# reading


def read_pages(walk: Walk) -> None:
    """Pages before and after a message, and from the end."""
    id, _, line = walk.pick()
    session = walk.session(id, line.name)
    limit = walk.random.choice((None, 0, 1, 3, 100))
    walk.note(f"pages of {id}/{line.name}")
    ids = [said.id for said in line.said]
    assert [message.id for message in session] == ids
    assert _ids(session.messages(limit)) == (
        ids if limit is None else ids[len(ids) - limit :] if limit < len(ids) else ids
    )
    if not ids:
        return
    at = walk.random.randrange(len(ids))
    before, after = session.messages(limit, before=ids[at]), session.messages(limit, after=ids[at])
    assert _ids(before) == (ids[:at] if limit is None else ids[max(at - limit, 0) : at])
    assert _ids(after) == (ids[at + 1 :] if limit is None else ids[at + 1 : at + 1 + limit])


def _ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


def pack(walk: Walk) -> None:
    """What a model is shown, within a random budget."""
    id, _, line = walk.pick()
    session = walk.session(id, line.name)
    budget = walk.random.choice((100_000, walk.random.randint(60, 400), walk.random.randint(100, 2_000)))
    if any(said.pinned for said in line.said[:-8]):
        budget = walk.random.randint(200, 600)
    most = walk.random.choice((None, None, 100, walk.random.randint(2, 12)))
    walk.note(f"pack {id}/{line.name} budget={budget} max_messages={most}")
    try:
        found = session.pack(budget, max_messages=most)
    except BudgetTooSmall:
        assert budget < 700 or (most is not None and most < 12)
        return
    look.at_pack(found, line, session, most)
    if budget == 100_000 and most is None:
        shown = {message.id for message in found.conversation.messages}
        covered = line.covered()
        assert shown >= {said.id for said in line.said if said not in covered}
