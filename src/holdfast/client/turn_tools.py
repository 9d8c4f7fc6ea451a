"""A turn and its tools: which calls begin now, and what came of those that began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.client.frame import Frame
from holdfast.client.steps import CallTool
from holdfast.client.tool_rules import ToolRules
from holdfast.client.tool_settling import Ready, Settling
from holdfast.client.tool_words import MAY_HAVE, asked_by, noted, unknown
from holdfast.errors import Refused
from holdfast.flow.compaction import ruling
from holdfast.flow.turn import calling, questioning
from holdfast.flow.turn.calling import Beginning, Returned
from holdfast.flow.turn.turns import View
from holdfast.ports import Acting, Ports
from holdfast.records.messages import Message

if TYPE_CHECKING:
    from holdfast.client.turn import Turn


class ToolFrame(Frame):
    """The frame of a tool call. The turn begins and ends it; the tool works in it."""

    def __init__(self, ports: Ports, acting: Acting, stream: str, frame: str) -> None:
        super().__init__(ports, acting, stream, "")
        self._id = frame

    def open(self) -> None:
        """It is open already."""
        raise Refused("The frame of a tool call is begun and ended by its turn. Push a child with frame(…) instead.")


class ToolCalls:
    """The calls of tools in one turn."""

    def __init__(self, turn: Turn, rules: ToolRules) -> None:
        self._turn, self._rules = turn, rules
        self._ports, self._acting = turn._ports, turn._acting
        self._settles: Settling | None = None

    @property
    def settling(self) -> Settling:
        """What is settled before calls begin. There is none before the turn has its place."""
        if self._settles is None:
            self._settles = Settling(self._ports, self._acting, self._turn._place, self._rules)
        return self._settles

    def begin(self, view: View, at_once: int | None) -> list[CallTool]:
        """Begin what can be begun now; none if something was only settled."""
        begun: list[Ready] = []
        for tool in view.step.tools:
            if tool.next == "wait" or (at_once is not None and len(begun) >= at_once):
                continue
            ready = self.settling.ready(view, tool)
            if ready is not None:
                begun.append(ready)
        if begun:
            calling.begin_tools(self._ports, self._acting, self._turn._place, [one for one, _ in begun])
        return [self._step(one, answer) for one, answer in begun]

    def _step(self, one: Beginning, answer: Any) -> CallTool:
        step = CallTool(self._turn, one.request, attempt=one.attempt, answer=answer, args=one.arguments)
        return self._turn._handed_out(one.request.id, step)

    def done(self, step: CallTool, value: Any, *, failed: bool = False, files: Sequence[bytes] = ()) -> Message:
        """What a call gave, or that it failed."""
        return self._ended(step, Returned(result=noted(step, value), failed=failed), files)

    def unknown(self, step: CallTool, text: str) -> Message:
        """Nobody knows what came of a call: the model is told so."""
        return self._ended(step, unknown(noted(step, text)))

    def _ended(self, step: CallTool, came: Returned, files: Sequence[bytes] = ()) -> Message:
        turn = self._turn
        turn._check_held()
        said = calling.end_tool(self._ports, self._acting, turn._place, step.request, came, files=files)
        step.answered = True
        if not said.id:
            return said
        turn._learn(said)
        ruling.after_append(self._ports, self._acting, turn._place.line, [said])
        return said

    def ask(self, step: CallTool, reason: str, kind: str, how: Mapping[str, Any]) -> str:
        """A tool asks a person something before it goes on; gives the question."""
        self._turn._check_held()
        one = Beginning(request=step.request, arguments=step._args)
        content = asked_by(reason, self.settling.shown(one), **how)
        return questioning.ask_first(self._ports, self._acting, self._turn._place, one, content, kind=kind)

    def doubt(self, step: CallTool, why: str) -> None:
        """Nobody knows what came of a call, and a person is to say what to do: its question is about the call."""
        self._turn._check_held()
        one = Beginning(request=step.request, arguments=step._args, attempt=step.attempt + 1)
        self.settling.ask_whether(one, why.removesuffix(MAY_HAVE))
