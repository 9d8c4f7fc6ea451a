"""The operations of the walk, each chosen at random: mostly what can be done, often what cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client_index import IndexView
from holdfast.errors import HoldfastError
from holdfast.records.frames import Limits
from holdfast.records.usage import Usage
from tests.model import frames_look as look
from tests.model.frames_model import LIVE, SCORES, No, Plan, Unit, nothing
from tests.model.frames_questions_model import KINDS
from tests.model.frames_walk import SCOPES, Op, Walk

PURPOSES = ("reply", "tools")
HANDLES = ("h1", "h2", "h3")
MANY_LIVE = 14


def some_frame(walk: Walk, like: Callable[[Unit], bool] | None = None) -> str:
    """A frame: live as a rule, and preferably like this; sometimes ended, now and then unknown."""
    live = walk.model.live()
    chance = walk.random.random()
    liked = [] if like is None else [unit for unit in live if like(unit)]
    if liked and chance < 0.8:
        return walk.random.choice(liked).id
    if live and chance < 0.95:
        return walk.random.choice(live).id
    if walk.model.units and chance < 0.99:
        return walk.random.choice(list(walk.model.units))
    return walk.new_id()


def scope_of(walk: Walk, frame: str) -> str:
    unit = walk.model.units.get(frame)
    return SCOPES[0] if unit is None else unit.scope


def some_limits(walk: Walk) -> Limits | None:
    if walk.random.random() < 0.6:
        return None
    return Limits(
        context_tokens=walk.random.choice((1000, 4000, 9000)),
        tool_calls=walk.random.choice((0, 1, 2, 10)),
        depth=walk.random.choice((0, 1, 2, 3, 4)),
        timeout_ms=walk.random.choice((20_000, 120_000, 400_000, None)),
    )


def push(walk: Walk) -> Op | None:
    if len(walk.model.live()) > MANY_LIVE:
        return pop(walk)
    chance = walk.random.random()
    parent = None if chance < 0.15 or not walk.model.live() else some_frame(walk, lambda unit: unit.question is None)
    scope = walk.random.choice(SCOPES) if parent is None or chance > 0.7 else None
    tokens: Any = walk.random.choice((None, 0, 7, 50, 50, 100, 400, 0.5, 0.5, 0.1, 1.0, 1000, 1000, -1, 1.5))
    if parent is None and walk.random.random() < 0.8:
        tokens = walk.random.choice((None, 100, 1000, 5000))
    limits, goal = some_limits(walk), f"goal {walk.steps}"
    frame_id = walk.new_id() if walk.random.random() < 0.15 else None
    where = scope or (scope_of(walk, parent) if parent is not None else SCOPES[0])
    how: dict[str, Any] = {
        "scope": scope,
        "parent": parent,
        "tokens": tokens,
        "limits": limits,
        "frame_id": frame_id,
    }
    return Op(
        "push",
        {"goal": goal, **how},
        where,
        lambda: walk.model.push(goal, **how),
        lambda index, key: index.push_frame(goal, key=key, **how),
        None if frame_id else lambda index, key: index.push_frame(goal + "!", key=key, **how),
        keyed=frame_id is None,
        after=lambda frame: walk.pushes.update({frame: how}),
        again=equal,
        repeatable=frame_id is not None,
    )


def push_again(walk: Walk) -> Op | None:
    """An id that exists: the same frame, or another, which is refused."""
    if not walk.pushes:
        return None
    frame = walk.random.choice(list(walk.pushes))
    how = {**walk.pushes[frame], "frame_id": frame}
    goal = walk.random.choice((walk.model.units[frame].pushed_goal, "another goal"))
    unit = walk.model.units[frame]
    return Op(
        "push again",
        {"goal": goal, **how},
        unit.scope,
        lambda: walk.model.push(goal, **how),
        lambda index, key: index.push_frame(goal, **how),
    )


def equal(first: Any, second: Any) -> None:
    assert first == second, f"a key gave {first} and then {second}"


def update(walk: Walk) -> Op:
    frame, chance = some_frame(walk), walk.random.random()
    how: dict[str, Any] = {"goal": f"goal {walk.steps}"}
    if chance < 0.35:
        how["status"] = walk.random.choice(("active", "waiting", "completed", "suspended", "asleep"))
    elif chance < 0.65:
        how["limits"] = some_limits(walk)
    elif chance < 0.75:
        how["tokens"] = walk.random.choice((0, 50, 1000, 2000, -3))
    other = {**how, "goal": "another goal"}
    return Op(
        "update",
        {"frame": frame, **how},
        scope_of(walk, frame),
        lambda: walk.model.update(frame, **how),
        lambda index, key: index.update_frame(frame, key=key, **how),
        lambda index, key: index.update_frame(frame, key=key, **other),
        frame=frame,
        keyed=True,
    )


def at_a_version(walk: Walk) -> None:
    """Whoever expects a version is refused if the frame has moved on."""
    frame, client = some_frame(walk), walk.random.choice(walk.clients)
    unit = walk.model.units.get(frame)
    if unit is None or unit.status not in LIVE:
        return
    walk.note(client, "update at a wrong version", {"frame": frame}, None)
    version = client.index.get_frame(frame).version
    try:
        client.index.update_frame(frame, goal="never", expected_version=version + walk.random.choice((-1, 1)))
    except HoldfastError as error:
        walk.told_of(client.number, error, {"VersionConflict", "StaleEpoch", "NotOwner"}, "update")
        return
    raise AssertionError("an update at a wrong version was done")


def pop(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: not walk.model.children(unit) and not unit.calls)
    status = walk.random.choice(("completed",) * 5 + ("failed", "cancelled", "cancelled") + ("active",))
    summary, error = walk.random.choice(((None, None), ("done", None), (None, "broken")))
    unit = walk.model.units.get(frame)
    if unit is not None and unit.status not in LIVE and walk.random.random() < 0.5:
        status, (summary, error) = unit.status, unit.words
    how: dict[str, Any] = {"summary": summary, "error": error}

    def after(info: Any) -> None:
        assert info == walk.clients[0].index.get_frame(frame), "what pop_frame gives is not what get_frame gives"

    return Op(
        "pop",
        {"frame": frame, "status": status, **how},
        scope_of(walk, frame),
        lambda: walk.model.pop(frame, status, summary, error),
        lambda index, key: index.pop_frame(frame, status, key=key, **how),
        lambda index, key: index.pop_frame(frame, status, summary="in another way", key=key),
        frame=frame,
        keyed=True,
        after=after,
        repeatable=True,
    )


def reserve(walk: Walk) -> Op:
    frame, purpose = some_frame(walk), walk.random.choice(PURPOSES)
    amount = walk.random.choice((0, 1, 5, 20, 100, 500, -1))
    return Op(
        "reserve",
        {"frame": frame, "purpose": purpose, "amount": amount},
        scope_of(walk, frame),
        lambda: walk.model.reserve(frame, purpose, amount),
        lambda index, key: index.reserve(frame, purpose, amount, key=key),
        lambda index, key: index.reserve(frame, purpose, amount + 1, key=key),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )


def release(walk: Walk) -> Op:
    purpose = walk.random.choice(PURPOSES)
    frame = some_frame(walk, lambda unit: purpose in unit.reserved)
    amount = walk.random.choice((None, None, 0, 1, 5, 100, -1))
    return Op(
        "release",
        {"frame": frame, "purpose": purpose, "amount": amount},
        scope_of(walk, frame),
        lambda: walk.model.release(frame, purpose, amount),
        lambda index, key: index.release_reservation(frame, purpose, amount, key=key),
        lambda index, key: index.reserve(frame, purpose, 1, key=key),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )


def record(walk: Walk) -> Op:
    frame = some_frame(walk)
    amount = walk.random.choice((0, 1, 3, 10, 10, 60, -2))
    usage: Any = amount
    if walk.random.random() < 0.5:
        usage = Usage(input=amount, output=walk.random.choice((0, 2)), cached_input=1, reasoning=2, cost=5, model="m")
    purpose = walk.random.choice(PURPOSES) if walk.random.random() < 0.4 else None
    if purpose is not None:
        frame = some_frame(walk, lambda unit: purpose in unit.reserved)

    def act(index: IndexView, key: str | None, more: int = 0) -> None:
        given = usage if not more else Usage(output=9999)
        if purpose is None:
            index.record_usage(frame, given, key=key)
        else:
            index.spend_reserved(frame, purpose, given, key=key)

    return Op(
        "record",
        {"frame": frame, "usage": usage, "purpose": purpose},
        scope_of(walk, frame),
        lambda: walk.model.record(frame, usage, purpose),
        act,
        lambda index, key: act(index, key, 1),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )


def add_handle(walk: Walk) -> Op:
    frame, handle = some_frame(walk), walk.random.choice(HANDLES)
    kind = walk.random.choice(("document", "url", "artifact") * 4 + ("thing",))
    priority = walk.random.choice((*SCORES, *SCORES, "huge"))
    tokens = walk.random.choice((None, 0, 10))
    how: dict[str, Any] = {"handle": handle, "priority": priority, "tokens": tokens}
    return Op(
        "add_handle",
        {"frame": frame, "kind": kind, **how},
        scope_of(walk, frame),
        lambda: walk.model.add_handle(frame, kind, **how),
        lambda index, key: index.add_handle(frame, kind, description="what", key=key, **how),
        lambda index, key: index.add_handle(frame, kind, description="something else", key=key, **how),
        frame=frame,
        keyed=True,
        again=equal,
    )


def remove_handles(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: bool(unit.handles))
    unit = walk.model.units.get(frame)
    names = walk.random.sample(HANDLES, walk.random.choice((0, 1, 1, 2)))
    if unit is not None and unit.handles and walk.random.random() < 0.7:
        names = walk.random.sample(list(unit.handles), walk.random.randint(1, len(unit.handles)))
    return Op(
        "remove_handles",
        {"frame": frame, "handles": names},
        scope_of(walk, frame),
        lambda: walk.model.remove_handles(frame, names),
        lambda index, key: index.remove_handle(frame, names, key=key),
        lambda index, key: index.reserve(frame, "reply", 1, key=key),
        frame=frame,
        keyed=True,
        after=lambda removal: walk.removals.append((frame, removal)) if removal else None,
        empty=not names,
        again=equal,
    )


def restore_handles(walk: Walk) -> Op | None:
    if not walk.removals:
        return None
    frame, removal = walk.random.choice(walk.removals[-4:])
    return Op(
        "restore_handles",
        {"frame": frame, "removal": removal},
        scope_of(walk, frame),
        lambda: walk.model.restore_handles(frame, removal),
        lambda index, key: index.restore_handles(frame, removal, key=key),
        lambda index, key: index.reserve(frame, "reply", 1, key=key),
        frame=frame,
        keyed=True,
    )


def add_result(walk: Walk) -> Op:
    frame, ref = some_frame(walk), f"ref-{walk.steps}"
    return Op(
        "add_result",
        {"frame": frame, "ref": ref},
        scope_of(walk, frame),
        lambda: walk.model.add_result(frame, "finding", ref),
        lambda index, key: index.add_result(frame, "finding", ref, key=key),
        lambda index, key: index.add_result(frame, "finding", "another", key=key),
        frame=frame,
        keyed=True,
        again=equal,
    )


def begin_model(walk: Walk) -> Op:
    frame = some_frame(walk)
    purpose = walk.random.choice(PURPOSES) if walk.random.random() < 0.3 else None
    return Op(
        "begin_model",
        {"frame": frame, "purpose": purpose},
        scope_of(walk, frame),
        lambda: walk.model.begin_model(frame, "m", purpose),
        lambda index, key: index.begin_model_call(frame, model="m", purpose=purpose, key=key),
        lambda index, key: index.begin_model_call(frame, model="another", purpose=purpose, key=key),
        frame=frame,
        keyed=True,
        after=lambda call: walk.calls.append((frame, call, "model")),
        again=equal,
    )


def begin_tool(walk: Walk) -> Op:
    frame = some_frame(walk)
    return Op(
        "begin_tool",
        {"frame": frame},
        scope_of(walk, frame),
        lambda: walk.model.begin_tool(frame, "search"),
        lambda index, key: index.begin_tool_call(frame, "search", key=key),
        lambda index, key: index.begin_tool_call(frame, "another", key=key),
        frame=frame,
        keyed=True,
        after=lambda call: walk.calls.append((frame, call, "tool")),
        again=equal,
    )


def end_call(walk: Walk) -> Op | None:
    if not walk.calls:
        return None
    pending = [
        call for call in walk.calls if call[0] in walk.model.units and call[1] in walk.model.units[call[0]].calls
    ]
    frame, call, kind = walk.random.choice(pending if pending and walk.random.random() < 0.8 else walk.calls)
    if walk.random.random() < 0.1:
        kind = "tool" if kind == "model" else "model"
    usage = walk.random.choice((0, 5, 30, 200))
    error = walk.random.choice((None, None, "timeout: too slow"))
    known = [ended for ended in walk.ended_calls if ended[1] == call]
    if known and walk.random.random() < 0.5:
        _, _, kind, usage, error = known[0]
    usage = usage if kind == "model" else 0
    ended = (frame, call, kind, usage, error)

    def plan() -> Any:
        if known:
            # One call has one outcome: the same again changes nothing, another is refused.
            if known[0] == ended:
                return look_away()
            raise No("CallNotFound")
        return walk.model.end_call(frame, call, kind, usage, error)

    def act(index: IndexView, key: str | None) -> None:
        if kind == "model":
            index.end_model_call(frame, call, usage=usage, error=error)
        else:
            index.end_tool_call(frame, call, value=None if error else 1, error=error)

    return Op(
        "end_call",
        {"frame": frame, "call": call, "kind": kind, "usage": usage, "error": error},
        scope_of(walk, frame),
        plan,
        act,
        frame=frame,
        after=lambda _: None if known else walk.ended_calls.append(ended),
        repeatable=True,
    )


def look_away() -> Plan:
    """A plan of nothing."""
    return Plan(nothing)


# questions


def suspend(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: unit.question is None)
    kind = walk.random.choice((*KINDS, *KINDS, "quiz"))
    until = walk.clock.now_ms() + walk.random.choice((0, 10_000, 60_000)) if kind == "timer" else None
    if walk.random.random() < 0.05:
        until = None if until else walk.clock.now_ms()
    expires = walk.random.choice((None, None, 5_000, 50_000))
    on_expiry = walk.random.choice((None, "fail", "cancel", "keep")) if expires or walk.random.random() < 0.1 else None
    rules: dict[str, Any] = {"kind": kind, "expires_ms": expires, "on_expiry": on_expiry, "until": until}
    rules |= {"subtree": walk.random.random() < 0.5}
    release_budget, token = walk.random.random() < 0.8, walk.random.random() < 0.5
    unit = walk.model.units.get(frame)
    awake = [] if unit is None else [other for other in walk.model.below(unit, here=True) if other.question is None]
    scope = scope_of(walk, frame)

    def learn_ids(asked: Any) -> Any:
        frames = walk.journal.load(look.TENANT, scope).frames
        return asked.question, asked.token, [frames[other.id].question.id for other in awake]

    def after(asked: Any) -> None:
        walk.questions.append(asked.question)
        walk.tokens += [asked.token] if asked.token else []

    def again(first: Any, second: Any) -> None:
        assert first.question == second.question
        assert (second.token is not None) == (token and walk.model.can_have_token(second.question))
        if second.token is not None:
            walk.tokens.append(second.token)
            walk.model.retoken(second.question, second.token)

    def act(index: IndexView, key: str | None, reason: str = "why") -> Any:
        return index.suspend_frame(frame, reason, token=token, release_budget=release_budget, key=key, **rules)

    return Op(
        "suspend",
        {"frame": frame, "token": token, "release": release_budget, **rules},
        scope,
        lambda: walk.model.suspend(frame, release=release_budget, **rules),
        act,
        lambda index, key: act(index, key, "why not"),
        frame=frame,
        keyed=True,
        learn=learn_ids,
        after=after,
        again=again,
    )


def some_question(walk: Walk) -> str | None:
    open_ones = [unit.question.id for unit in walk.model.live() if unit.question is not None]
    if open_ones and walk.random.random() < 0.95:
        return walk.random.choice(open_ones)
    return walk.random.choice(walk.questions) if walk.questions else None


def answer(walk: Walk) -> Op | None:
    question, token = some_question(walk), None
    if walk.tokens and walk.random.random() < 0.5:
        question, token = None, walk.random.choice((*walk.tokens[-6:], *walk.tokens[-2:], "forged"))
    if question is None and token is None:
        return None
    approve, note = walk.random.choice((True, False, None)), walk.random.choice((None, "note"))
    if walk.said and walk.random.random() < 0.2:
        question, token, approve, note = walk.said[-1]  # Word for word, as somebody would who clicks twice.
    said = (question, token, approve, note)
    return Op(
        "answer",
        {"question": question, "token": token, "approve": approve, "note": note},
        "",
        lambda: walk.model.answer(question, token, (approve, note)),
        lambda index, key: index.answer(question, token=token, approve=approve, note=note),
        after=lambda _: walk.said.append(said),
        repeatable=token is None,
    )


def reissue(walk: Walk) -> Op | None:
    question = some_question(walk)
    if question is None:
        return None
    expires = walk.random.choice((None, 5_000, 50_000))
    return Op(
        "reissue",
        {"question": question, "expires_ms": expires},
        "",
        lambda: walk.model.reissue(question, expires),
        lambda index, key: index.reissue_token(question, expires_ms=expires),
        after=lambda token: walk.tokens.append(token),
    )


def resume(walk: Walk) -> Op | None:
    question, token = some_question(walk), None
    if walk.tokens and walk.random.random() < 0.25:
        question, token = None, walk.random.choice((*walk.tokens[-4:], "forged"))
    if question is None and token is None:
        return None
    words = walk.random.choice((None, None, (True, None), (False, None), (True, "note")))
    how: dict[str, Any] = {} if words is None else {"approve": words[0], "note": words[1]}
    unit = walk.model.asked(question) if question is not None else walk.model.with_token(str(token))
    return Op(
        "resume",
        {"question": question, "token": token, **how},
        SCOPES[0] if unit is None else unit.scope,
        lambda: walk.model.resume(question, token, words),
        lambda index, key: index.resume_frame(question, token=token, **how),
        frame=None if unit is None else unit.id,
    )


# actors


def take(walk: Walk) -> None:
    """Become the owner of a scope; whoever owned it can write no more."""
    scope, client = walk.random.choice(SCOPES), walk.random.choice(walk.clients)
    walk.note(client, "take", {"scope": scope}, None)
    try:
        plan, allowed = walk.model.take(client.number, scope), set[str]()
    except No as refused:
        plan, allowed = look_away(), set(refused.names)
    try:
        state = client.index.resume_actor(scope, incarnation=f"i{walk.steps}")
    except HoldfastError as error:
        walk.told_of(client.number, error, allowed, "take")
        return
    assert not allowed, f"taken, and should be refused with {allowed}"
    walk.model.carry_out(client.number, plan, None)
    assert (state.epoch, state.holder) == (walk.model.epoch[scope], client.hf._ports.leases.name)


def let_go(walk: Walk) -> None:
    held = [(number, scope) for number, scope in walk.model.leases]
    if not held:
        return
    number, scope = walk.random.choice(held)
    client = next(client for client in walk.clients if client.number == number)
    walk.note(client, "let go", {"scope": scope}, None)
    try:
        plan, allowed = walk.model.let_go(number, scope), set[str]()
    except No as refused:
        plan, allowed = look_away(), set(refused.names)
    try:
        client.index.release_actor(scope)
    except HoldfastError as error:
        walk.told_of(number, error, allowed, "let go")
        return
    assert not allowed
    walk.model.carry_out(number, plan, None)


def sweep(walk: Walk) -> None:
    client, orphans = walk.random.choice(walk.clients), walk.random.random() < 0.3
    walk.note(client, "sweep", {"fail_orphans": orphans}, None)
    wanted = walk.model.sweep(client.number, orphans)
    found = client.index.sweep(fail_orphans=orphans)
    assert {name: list(getattr(found, name)) for name in wanted} == wanted, f"swept {found}, not {wanted}"


# the world


def jump(walk: Walk) -> None:
    by = walk.random.choice((-60_000, -1, 1, 5_000, 20_000, 90_000))
    walk.log.append(f"{walk.steps:5} the clock jumps by {by} ms")
    walk.clock.jump(by)


def crash(walk: Walk) -> None:
    """A client is gone without a word; another one finds everything as it was."""
    place = walk.random.randrange(len(walk.clients))
    gone, walk.clients[place] = walk.clients[place], walk.new_client()
    walk.log.append(f"{walk.steps:5} client {gone.number} is gone, client {walk.clients[place].number} comes")
    gone.end(close=walk.memory is None)
    walk.model.die(gone.number)
    look.at_everything(walk.model, walk.clients[place].index, SCOPES)


def rebuild(walk: Walk) -> None:
    walk.log.append(f"{walk.steps:5} rebuild")
    walk.journal.rebuild()


def note_from_outside(walk: Walk) -> None:
    """Inbox events arrive whoever owns the scope."""
    client, scope = walk.random.choice(walk.clients), walk.random.choice(SCOPES)
    walk.note(client, "app.noted", {"scope": scope}, None)
    client.hf.journal.append(scope, "app.noted", {"text": "hello"})


Chooser = Callable[[Walk], Any]

WEIGHTS: dict[Chooser, int] = {
    push: 24,
    push_again: 2,
    update: 6,
    at_a_version: 1,
    pop: 12,
    reserve: 6,
    release: 4,
    record: 10,
    add_handle: 5,
    remove_handles: 3,
    restore_handles: 2,
    add_result: 2,
    begin_model: 5,
    begin_tool: 6,
    end_call: 9,
    suspend: 10,
    answer: 6,
    reissue: 2,
    resume: 12,
    take: 2,
    let_go: 3,
    sweep: 3,
    jump: 3,
    crash: 1,
    rebuild: 1,
    note_from_outside: 1,
}


def choose(walk: Walk) -> Op | None:
    """The next operation; those that are no single call are done at once."""
    chosen = walk.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0](walk)
    return chosen if isinstance(chosen, Op) else None
