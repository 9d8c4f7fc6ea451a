"""What a tenant asks of its agents. They answer from a script: what they say follows from what they are shown."""

from __future__ import annotations

from typing import Any

from holdfast import Message, Usage
from holdfast.model.scripted import Scripted
from holdfast.model.scripted import call as tool_call
from holdfast.models import ModelReply
from holdfast.runtime.tools.tool import tool
from tests.edges.tenant_actor import SESSIONS, USERS, Actor
from tests.edges.tenant_calls import call


def an_agent(actor: Actor) -> Any:
    """An agent that says what it was shown, after a look; sometimes somebody has to agree to that first."""

    @tool(needs_approval=bool(actor.maybe(True, 0.2)), if_interrupted="retry")
    def glance(at: str) -> str:
        """Look at something."""
        actor.between()
        return f"seen {at}"

    def answer(pack: Any) -> Any:
        last = pack.conversation.messages[-1]
        asked = (tool_call("glance", at=last.text),) if last.role == "user" else ()
        shown = None if asked else f"I was shown {[one.text[:40] for one in pack.conversation.messages]}"
        # No input is reported: how well tokens are estimated is learnt for a model, whoever asks it.
        return ModelReply(message=Message(role="assistant", content=shown, tool_calls=asked), usage=Usage(output=7))

    made = actor.someone().agent(actor.one(("a", "b")), model=Scripted(answer), tools=[glance], system=actor.text())
    made = made.tenant(actor.tenant) if actor.maybe(True) else made
    return made.as_user(actor.one(USERS)) if actor.maybe(True) else made


@call("Holdfast", "agent", "Agent", "send name tenant as_user __repr__")
def send_to_an_agent(actor: Actor) -> Any:
    agent = an_agent(actor)
    message = actor.maybe(actor.text(), 0.9)
    return repr(agent), agent.name, agent.send(actor.one(SESSIONS), message, key=actor.key("send"), if_busy="reject")


@call("Agent", "stream tail")
def hear_an_agent(actor: Actor) -> Any:
    agent, session = an_agent(actor), actor.one(SESSIONS)
    heard = list(agent.stream(session, actor.text(), key=actor.key("send"), if_busy="reject"))
    after = actor.note("place", next((event.id for event in heard if event.id is not None), "0.0"))
    return heard, list(agent.tail(session, after))


@call("Agent", "stop")
def stop_an_agent(actor: Actor) -> Any:
    agent, session = an_agent(actor), actor.one(SESSIONS)
    return agent.stop(session, actor.text()), agent.stop("nowhere")
