"""What a tenant asks of its call stacks: at the low level, in blocks, and with questions."""

from __future__ import annotations

from typing import Any

from holdfast import HoldfastError, Limits, Usage
from holdfast.records.ids import ulid_text
from holdfast.types import QuestionReceipt
from tests.edges.tenant_actor import FRAME_IDS, USERS, Actor
from tests.edges.tenant_calls import call


def handles_of(actor: Actor, parent: str | None) -> list[str]:
    """Some of what a parent can pass on."""
    known = [] if parent is None else [one.id for one in actor.hf.index.handles(parent) if one.removed is None]
    return known[: actor.random.randint(0, 2)]


@call("index", "push_frame handles", "Holdfast", "index")
def push_frame(actor: Actor) -> Any:
    parent = actor.maybe(actor.recent("frame"), 0.4) if actor.known["frame"] else None
    frame = actor.hf.index.push_frame(
        actor.text(),
        scope=actor.actor() if parent is None else None,
        parent=parent,
        inputs={"about": actor.text()},
        inherit=handles_of(actor, parent),
        tokens=actor.one((None, 40, 500)),
        limits=actor.maybe(Limits(depth=4, tool_calls=3, timeout_ms=90_000)),
        frame_id=actor.maybe(actor.one(FRAME_IDS), 0.2),
        key=actor.key("push"),
    )
    return actor.note("frame", frame)


@call("index", "update_frame")
def update_frame(actor: Actor) -> Any:
    return actor.hf.index.update_frame(actor.frame(), goal=actor.text(), metadata={"by": actor.text()})


@call("index", "pop_frame")
def pop_frame(actor: Actor) -> Any:
    frame = actor.frame()
    status = actor.one(("completed", "failed", "cancelled"))
    error = actor.text() if status == "failed" else None
    return actor.hf.index.pop_frame(frame, status, summary=actor.text(), error=error, key=actor.key("pop"))


@call("index", "get_frame ancestry")
def get_frame(actor: Actor) -> Any:
    frame = actor.frame()
    return actor.hf.index.get_frame(frame), actor.hf.index.ancestry(frame)


@call("index", "stack stacks top_of_stack leaves")
def stacks(actor: Actor) -> Any:
    index, scope = actor.hf.index, actor.actor()
    return index.stack(scope), list(index.stacks()), index.top_of_stack(scope), index.leaves(scope)


@call("index", "resume_actor release_actor")
def resume_actor(actor: Actor) -> Any:
    scope = actor.actor()
    found = actor.hf.index.resume_actor(scope, incarnation=actor.maybe(f"i{actor.random.randint(1, 3)}"))
    actor.between()
    return found, actor.hf.index.release_actor(scope)


@call("index", "brief set_brief")
def briefs(actor: Actor) -> Any:
    index, scope = actor.hf.index, actor.one((actor.actor(), f"{actor.actor()}/session/s/thread/main", "s", "global"))
    index.set_brief(scope, actor.one(("main", "planner")), system_prompt=actor.text(), invariants=[actor.text()])
    return index.brief(scope), index.brief(actor.actor(), "planner"), index.brief("session/t/thread/main")


@call("index", "sweep")
def sweep(actor: Actor) -> Any:
    return actor.hf.index.sweep(fail_orphans=bool(actor.maybe(True)))


@call("index", "reserve spend_reserved release_reservation record_usage")
def budgets(actor: Actor) -> Any:
    index, frame = actor.hf.index, actor.frame()
    index.reserve(frame, "draft", 10, key=actor.key("reserve"))
    index.spend_reserved(frame, "draft", actor.random.randint(1, 9))
    index.release_reservation(frame, "draft")
    index.record_usage(frame, Usage(input=3, output=actor.random.randint(1, 5)), key=actor.key("usage"))
    return index.get_frame(frame)


@call("index", "add_handle handles remove_handle restore_handles compact_context add_result results")
def evidence(actor: Actor) -> Any:
    index, frame = actor.hf.index, actor.frame()
    handle = index.add_handle(frame, "document", description=actor.text(), body=actor.text(), key=actor.key("handle"))
    result = index.add_result(frame, "artifact", "out.txt", summary=actor.text())
    removal = index.remove_handle(frame, handle, reason=actor.text())
    gone = index.handles(frame)
    back = None if removal is None else index.restore_handles(frame, removal)
    smaller = index.compact_context(frame, actor.one((0, 50)), actor.one(("priority", "summarise_oldest")), store=True)
    return handle, result, gone, back, smaller, index.handles(frame), index.results(frame)


@call("index", "assemble_context_pack pack_at")
def context_pack(actor: Actor) -> Any:
    index, frame = actor.hf.index, actor.frame()
    packed = index.assemble_context_pack(frame=frame, budget_tokens=2_000, query=actor.text())
    call = index.begin_model_call(frame, packed)
    return packed, index.pack_at(call)


@call("index", "begin_model_call end_model_call begin_tool_call end_tool_call")
def calls(actor: Actor) -> Any:
    index, frame = actor.hf.index, actor.frame()
    model = index.begin_model_call(frame, model="m", request={"ask": actor.text()}, key=actor.key("model"))
    index.end_model_call(frame, model, usage=actor.random.randint(1, 9), response=actor.text())
    tool = index.begin_tool_call(frame, "look", arguments={"at": actor.text()}, key=actor.key("tool"))
    if actor.maybe(True, 0.8):
        index.end_tool_call(frame, tool, value=actor.text(), error=actor.maybe(actor.text(), 0.2))
    return model, tool, index.get_frame(frame)


def ask(actor: Actor) -> QuestionReceipt:
    """A new question with a token."""
    frame = actor.note("frame", actor.hf.index.push_frame(actor.text(), scope=actor.actor()))
    return actor.hf.index.suspend_frame(
        frame, actor.text(), options=["yes", "no"], token=True, expires_ms=actor.maybe(100_000), key=actor.key("ask")
    )


@call("index", "suspend_frame question reissue_token", "Holdfast", "questions")
def questions(actor: Actor) -> Any:
    asked = actor.note("asked", ask(actor))
    index = actor.hf.index
    token = index.reissue_token(asked.question) if actor.maybe(True, 0.3) else None
    actor.known["asked"][-1] = asked if token is None else QuestionReceipt(**{**_fields(asked), "token": token})
    return asked, index.question(asked.question), list(actor.hf.questions()), token is None


def _fields(asked: QuestionReceipt) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__struct_fields__}


@call("Holdfast", "answer", "index", "answer_to")
def answer(actor: Actor) -> Any:
    asked = actor.recent("asked", lambda: ask(actor))
    scope = actor.hf.index.get_frame(asked.frame).scope
    try:
        if actor.maybe(True):
            done = actor.hf.answer(asked.question, approve=True, by=actor.one(USERS), note=actor.text())
        else:
            done = actor.hf.answer(token=asked.token, approve=False, payload=actor.text())
    except HoldfastError as error:
        return error, actor.hf.index.answer_to(scope, asked.question)
    return done, actor.hf.index.answer_to(scope, asked.question)


@call("index", "resume_frame")
def resume_frame(actor: Actor) -> Any:
    asked = actor.recent("asked", lambda: ask(actor))
    way = {"token": asked.token} if actor.maybe(True, 0.3) else {"question": asked.question}
    return actor.hf.index.resume_frame(**way, payload=actor.text()), actor.hf.index.get_frame(asked.frame)


@call(
    "Frame",
    "run spend reserve release attach detach frame result id info status tokens left limits append messages pack "
    "history_tools __repr__",
    "Holdfast",
    "frame",
)
def work_in_a_block(actor: Actor) -> Any:
    shown: list[Any] = []

    def step(text: str) -> str:
        actor.between()
        return text.upper()

    with actor.hf.frame(actor.text(), actor=actor.one(("baker", "smith")), tokens=1_000) as frame:
        shown += [frame.id, frame.run(step, actor.text(), key="one"), frame.left, frame.limits]
        frame.reserve("draft", 20)
        frame.spend(5, purpose="draft")
        frame.release("draft")
        handle = frame.attach("document", body=actor.text())
        with frame.frame(actor.text(), tokens=50, inherit=[handle]) as child:
            child.spend(3)
            shown += [child.append(actor.text()), child.append([actor.text()]), child.messages(1)]
        shown += [frame.pack(800), frame.history_tools().run("expand", {"handle": "m1"})]
        shown += [frame.detach(handle), frame.tokens, frame.status, frame.info(), frame.messages()]
        frame.result({"said": actor.text()}, summary=actor.text())
    return shown, repr(frame), frame.info()


def decide(actor: Actor, number: int) -> Any:
    """A block that goes on where it stood, once it has its answer."""
    frame = actor.hf.frame(f"Decide {number}", actor="judge", key=f"decide-{number}")
    frame.open()
    found: list[Any] = []
    try:
        found.append(frame.run(lambda: 7, key="seven"))
        if frame.status != "completed":
            found.append(frame.suspend("Really?", key="really", token=True))
            actor.note("asked", found[-1])
            found += [frame.ask("Really?", key="really"), frame.result(actor.text())]
    except HoldfastError as error:
        frame.leave(error)
        return found, error
    frame.leave()
    return found, frame.value()


@call("Frame", "open leave ask suspend result value run status", "Holdfast", "frame answer")
def work_that_waits(actor: Actor) -> Any:
    number = actor.random.randint(1, 3)
    first = decide(actor, number)
    asked = actor.known["asked"][-1:]
    if not asked or actor.maybe(True, 0.3):
        return first
    actor.between()
    try:
        done: Any = actor.hf.answer(asked[0].question, approve=True, payload=actor.text())
    except HoldfastError as error:
        done = error
    return first, done, decide(actor, number)


@call("Frame", "run", "index", "push_frame", "Holdfast", "frame")
def work_under_a_chosen_id(actor: Actor) -> Any:
    """A frame whose id follows from the time, so that others who work at the same moment choose the same."""
    id = ulid_text((actor.place.clock.now_ms() << 80).to_bytes(16, "big"))

    def step() -> str:
        actor.between()
        return actor.text()

    made = actor.hf.index.push_frame("Chosen", scope="actor/chooser", frame_id=id, key=f"chosen-{id}")
    with actor.hf.frame("Chosen", actor="chooser", key=f"chosen-{id}") as frame:
        return made, frame.run(step, key="step")
