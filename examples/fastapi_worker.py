"""A web worker that streams replies, and whose clients and processes may come and go.

    MODEL=openai:gpt-5-mini OPENAI_API_KEY=… python examples/fastapi_worker.py
    python examples/fastapi_worker.py                       without a key: a script plays the model

    curl -N -H 'Content-Type: application/json' -H 'Idempotency-Key: req-81' \\
        -d '{"text": "Please refund order 17."}' localhost:8000/chats/alice/messages
    curl -N -H 'Last-Event-ID: 4.3' localhost:8000/chats/alice/events      after a lost connection: the rest
    curl -X POST localhost:8000/chats/alice/stop                           what was said is kept

A client that hangs up does not stop the work. A worker that dies leaves its turns to the others, which take them up
while they run (`recovering`); one that is told to end lets its turns finish, and what is not done in time stays live.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse

import holdfast
from holdfast import AgentEvent, AsyncAgent, AsyncHoldfast, Scripted, tool
from holdfast.testing import call

GRACE = 20.0
"""Seconds that turns may take to finish when the worker is told to end."""


class Shop:
    """Your systems. What is done here stays done, whatever becomes of this process."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    async def pay_back(self, order: int) -> None:
        """Pays: it must not run twice."""
        self.paid.append(order)


def support(hf: AsyncHoldfast, shop: Shop, model: Any) -> AsyncAgent[Any]:
    """The agent. It holds no messages, so every worker can have it."""

    @tool
    async def refund(order: int) -> str:
        """Pay an order back."""
        await shop.pay_back(order)
        return f"order {order} is paid back"

    return hf.agent("support", model=model, system="You help the customers of a shop.", tools=[refund])


async def work(agent: AsyncAgent[Any], session: str, text: str, key: str) -> AsyncGenerator[str]:
    """Answer one request, as server-sent events. With the same key it goes on, or gives what came of it."""
    async for event in agent.stream(session, text, key=key):
        yield sent(event)


def sent(event: AgentEvent) -> str:
    """One event on the wire. Those in the journal have an id, which a client that reconnects sends back."""
    head = f"id: {event.id}\n" if event.id is not None else ""
    data = {"text": event.text, "name": event.name, **event.data}
    return f"{head}event: {event.kind}\ndata: {json.dumps(data)}\n\n"


def make_app(url: str = "agent.db", *, model: Any = None, shop: Shop | None = None, every: float = 1.0) -> FastAPI:
    """The application: one journal, one agent."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with holdfast.open_async(url) as hf:
            app.state.hf, app.state.agent = hf, support(hf, shop or Shop(), model or SCRIPT)
            # uvicorn gets the signals; when it leaves this block, turns have the grace to end.
            async with hf.graceful_shutdown(grace=GRACE, signals=()), app.state.agent.recovering(every=every):
                yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/chats/{session}/messages")
    async def say(
        request: Request,
        session: str,
        text: Annotated[str, Body(embed=True)],
        idempotency_key: Annotated[str, Header()],
    ) -> StreamingResponse:
        return await streamed(work(request.app.state.agent, session, text, idempotency_key))

    @app.get("/chats/{session}/events")
    async def events(
        request: Request, session: str, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        """From where a client was; else from the beginning of the turn that is under way."""
        heard = request.app.state.agent.tail(session, after=last_event_id)
        return await streamed(sent(event) async for event in heard)

    @app.post("/chats/{session}/stop")
    async def stop(request: Request, session: str) -> dict[str, bool]:
        return {"stopped": await request.app.state.agent.stop(session)}

    @app.post("/questions/{question}")
    async def answer(request: Request, question: str, approve: Annotated[bool, Body(embed=True)]) -> dict[str, bool]:
        """A person's answer. `recovering` goes on with the turn that waited for it."""
        await request.app.state.hf.answer(question, approve=approve)
        return {"answered": True}

    @app.exception_handler(holdfast.HoldfastError)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
        return JSONResponse({"detail": str(error)}, status)

    return app


STATUS = {holdfast.errors.NotFound: 404, holdfast.Conflict: 409, holdfast.Refused: 422, holdfast.Unavailable: 503}


async def streamed(events: AsyncGenerator[str]) -> StreamingResponse:
    """Server-sent events. What is wrong with a request is known with the first one, while there can be a status."""
    first = await anext(events, "")

    async def all_of_them() -> AsyncIterator[str]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return StreamingResponse(all_of_them(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


SCRIPT = Scripted([call("refund", order=17), "Order 17 is paid back, as you asked."])


def main() -> None:
    """One worker. Several on one journal share the work."""
    app = make_app(os.environ.get("JOURNAL", "agent.db"), model=os.environ.get("MODEL"))
    # Streams that are still open after some seconds are cut: their clients reconnect to another worker.
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
