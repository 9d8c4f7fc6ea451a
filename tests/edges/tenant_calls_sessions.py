"""What a tenant asks of its conversations."""

from __future__ import annotations

from typing import Any

from holdfast import Ask, CallModel, CallTool, DualWrite, HoldfastError, Message, Session, Usage
from holdfast.compaction import CompactionConfig
from tests.edges.tenant_actor import SESSIONS, USERS, Actor
from tests.edges.tenant_calls import call

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}


def stored(actor: Actor, session: Session) -> Message:
    """A message of a session; one is said if it has none."""
    found = session.messages(6)
    return actor.one(found) if found else session.append(actor.text())


@call("Holdfast", "session as_user __repr__")
def open_session(actor: Actor) -> Any:
    who = actor.hf.as_user(actor.one(USERS))
    session = who.session(
        actor.one(SESSIONS),
        system=actor.maybe(actor.text()),
        tools=actor.maybe([TOOL]),
        title=actor.maybe(actor.text()),
        idle_timeout=actor.maybe(600.0, 0.2),
        metadata=actor.maybe({"about": actor.text()}),
    )
    return repr(who), session


@call("Holdfast", "session tenant")
def session_that_must_be_there(actor: Actor) -> Any:
    return actor.hf.tenant(actor.tenant).session(actor.one(SESSIONS), create=False)


@call("Holdfast", "new_session", "Session", "append __repr__")
def new_session(actor: Actor) -> Any:
    session = actor.someone().new_session(title=actor.maybe(actor.text()))
    return session, session.append(actor.text())


@call("Holdfast", "sessions")
def list_sessions(actor: Actor) -> Any:
    return [
        list(actor.hf.sessions()),
        list(actor.hf.sessions(user=actor.one(USERS), limit=2)),
        list(actor.hf.sessions(title=actor.text().split()[0], status=actor.maybe("open"))),
        list(actor.hf.sessions(order=actor.one(("cost", "title")))),
    ]


@call("Holdfast", "usage")
def usage_of_all(actor: Actor) -> Any:
    return actor.hf.usage()


@call("Holdfast", "sweep_sessions")
def sweep_sessions(actor: Actor) -> Any:
    return actor.hf.sweep_sessions(), actor.place.told[actor.tenant]


@call(
    "Session",
    "model title usage details __len__ __repr__ _repr_html_",
    "details",
    "status system metadata tools threads __repr__",
)
def look_at_session(actor: Actor) -> Any:
    one = actor.talk()
    shown = [one.details.status, one.model, one.details.system, one.title, one.details.metadata, one.details.tools]
    shown += [one.details.threads, one.usage]
    return [*shown, len(one), repr(one), repr(one.details), one._repr_html_()]


@call("Session", "packs", "packs", "brief set_brief __repr__")
def brief_a_session(actor: Actor) -> Any:
    session = actor.talk()
    before = session.packs.brief()
    session.packs.set_brief(
        actor.one(("main", "planner")),
        system_prompt=actor.maybe(actor.text()),
        invariants=actor.maybe([actor.text()]),
        working_context=actor.maybe({"about": actor.text()}),
        tools=actor.maybe([TOOL]),
        key=actor.key("brief"),
    )
    return repr(session.packs), before, session.packs.brief(), session.packs.brief("planner")


@call("Session", "append")
def say(actor: Actor) -> Any:
    session = actor.talk()
    given: Any = actor.text()
    if actor.maybe(True, 0.3):
        given = [given, {"role": "assistant", "content": actor.text(), "name": actor.one(USERS)}]
    files = [("note.txt", actor.text().encode())] if actor.maybe(True, 0.3) and isinstance(given, str) else []
    return session.append(given, files=files, policy=actor.maybe("pinned", 0.1), key=actor.key("say"))


@call("Session", "append append_result details", "details", "open_calls")
def call_a_tool(actor: Actor) -> Any:
    session = actor.talk()
    made = {"id": "c1", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    usage = {"prompt_tokens": 7, "completion_tokens": actor.random.randint(1, 9)}
    asked = session.append({"role": "assistant", "content": None, "tool_calls": [made], "usage": usage})
    waiting = session.details.open_calls()
    if actor.maybe(True, 0.2):
        return asked, waiting
    return asked, waiting, session.append_result(waiting[-1], {"seen": actor.text()}), session.details.open_calls()


@call("Session", "turn")
def take_a_turn(actor: Actor) -> Any:
    session, told = actor.talk(), []
    made = {"id": "c1", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    rules = {"if_interrupted": actor.one(("ask", "retry", "fail")), "needs_approval": actor.one(((), ("look",)))}
    with session.turn(actor.text(), key=actor.key("turn"), if_busy="reject", loops=3, **rules) as turn:
        for step in turn:
            told.append([repr(step), step.pack.to_openai() if isinstance(step, CallModel) else None])
            if actor.maybe(True, 0.1):
                break  # It stays live: whoever comes next goes on with it.
            if isinstance(step, CallModel):
                asked = actor.maybe({"role": "assistant", "content": None, "tool_calls": [made]}, 0.4)
                step.done(asked or actor.text(), usage=Usage(input=7, output=3))
            elif isinstance(step, CallTool):
                step.done({"seen": actor.text()})
            elif isinstance(step, Ask) and actor.maybe(True):
                actor.hf.answer(step.id, approve=bool(actor.maybe(True)))
    return told, turn.usage, turn.text, session.details.open_calls()


@call("Session", "stop")
def stop_a_turn(actor: Actor) -> Any:
    return actor.talk().stop(actor.text())


@call("Session", "messages __iter__ __len__")
def read_session(actor: Actor) -> Any:
    session = actor.talk()
    at = stored(actor, session)
    pages = [session.messages(3), session.messages(2, before=at), session.messages(2, after=at.id)]
    return pages, list(session), len(session)


@call("Session", "search", "Holdfast", "search")
def search(actor: Actor) -> Any:
    limit, text = actor.one((1, 5, 50)), actor.text()
    found = [actor.hf.session(id).search(text, limit=limit) for id in SESSIONS]
    return found, actor.talk().search(actor.text()), actor.hf.search(text, limit=limit)


@call(
    "Session",
    "pack",
    "ContextPack",
    "messages system tools summaries conversation tokens budget exact tokenizer model shortened to_openai to_responses "
    "to_anthropic __repr__ _repr_html_ segments brief_context breadcrumbs evidence token_summary level limited_by "
    "cached_share metadata decisions digest load_files",
)
def pack(actor: Actor) -> Any:
    session = actor.talk()
    stored(actor, session)
    packed = session.pack(actor.one((200, 4_000)), max_messages=actor.maybe(5), recall=actor.maybe(3))
    forms = [packed.to_openai(), packed.to_responses(), packed.to_anthropic()]
    return packed, forms, repr(packed), packed._repr_html_(), packed.load_files().digest


@call("Session", "pack_at packs", "packs", "begin_model_call history_tools", "ContextPack", "diff")
def model_call(actor: Actor) -> Any:
    session = actor.talk()
    stored(actor, session)
    packed = session.pack(4_000)
    call = session.packs.begin_model_call(packed, key=actor.key("pack"))
    tools = session.packs.history_tools()
    read = [tools.run("search_history", {"query": actor.text()}), tools.run("expand", {"handle": "m3"})]
    return session.pack_at(call), session.pack(4_000).cached_share, packed.diff(session.pack_at(call)), read


@call("Session", "packs why", "packs", "list")
def ask_why(actor: Actor) -> Any:
    session = actor.talk()
    said = stored(actor, session)
    asked = (said.text[:40] or "x", actor.text(), "nothing of that kind")
    return [session.why(text) for text in asked], session.packs.list(5)


@call("Session", "compaction compact", "compaction", "add_rule rules summaries expand __repr__")
def compact(actor: Actor) -> Any:
    session = actor.talk()
    undo = session.compaction.add_rule(CompactionConfig(threshold=2, keep=1, store=True))
    for _ in range(3):
        session.append(actor.text())
    rules = session.compaction.rules
    undo()
    summary = session.compact(keep=actor.one((1, 2)), whole=bool(actor.maybe(True, 0.2)))
    kept = session.compaction.summaries()
    return (
        repr(session.compaction),
        rules,
        summary,
        kept,
        [session.compaction.expand(actor.one((one, one.id))) for one in kept],
    )


@call("Session", "rewind")
def rewind(actor: Actor) -> Any:
    session = actor.talk()
    at = stored(actor, session)
    done = session.rewind(to=at, reason=actor.text()) if actor.maybe(True) else session.rewind(before=at.id)
    return done, session.messages(4)


@call("Session", "fork")
def fork(actor: Actor) -> Any:
    session = actor.talk()
    branch = session.fork(actor.maybe(stored(actor, session)), thread=actor.maybe(f"f{actor.random.randint(1, 99)}"))
    return branch, branch.append(actor.text()), list(branch)


@call("Session", "pin unpin")
def pin(actor: Actor) -> Any:
    session = actor.talk()
    at = stored(actor, session)
    return session.pin(at), session.messages(4), session.unpin(at.id) if actor.maybe(True) else None


@call("Session", "close reset")
def end_session(actor: Actor) -> Any:
    session = actor.hf.session(actor.one(SESSIONS))
    try:
        session.close()
    except HoldfastError as error:
        return error
    closed = session.details.status
    if actor.maybe(True, 0.7):
        session.reset()
    return closed, session.details.status, actor.place.told[actor.tenant]


@call("Session", "import_messages export")
def port(actor: Actor) -> Any:
    session = actor.talk()
    given = [{"role": "user", "content": actor.text()}, {"role": "tool", "tool_call_id": "x", "content": "orphan"}]
    done = session.import_messages(given, key=actor.key("import"))
    return done, [session.export(form) for form in ("openai", "responses", "anthropic", "jsonl")]


@call("DualWrite", "append catch_up behind session to_openai __len__ __iter__")
def write_to_both(actor: Actor) -> Any:
    name = f"list {len(actor.known['list'])}"
    both = DualWrite([{"role": "user", "content": actor.text()}], actor.hf, actor.note("list", "both"), name=name)
    both.append({"role": "assistant", "content": actor.text()})
    both.catch_up()
    return both.behind, both.session, both.to_openai(), len(both), list(both)
