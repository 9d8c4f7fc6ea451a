"""The type that an agent's replies must have: as a schema for the model, and as values for whoever asked.

Providers want an object, so a type that is none stands in one: `{"value": …}`. Models that were told so write the value
alone all the same, so both are read. What is wrong with a reply is said in words that the model can act on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from holdfast.core.tool_schemas import listed
from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import Message
from holdfast.runtime.tools.arguments import quoted, read_json, read_value, several
from holdfast.runtime.tools.schema import Schema, object_of, schema_of

_VALUE: Final = "value"
_FENCE: Final = re.compile(r"```(?:[ \t]*[\w.+-]*[ \t]*\r?\n|[ \t]*json\b|[A-Za-z]+(?=[ \t]*[{\[])|)", re.IGNORECASE)
"""The beginning of a fence, with the language's name: on a line of its own, or where it cannot be the value."""


class Output:
    """What replies must be: anything, or of one type. Types that are no objects stand in one, as `value`."""

    def __init__(self, kind: Any = None) -> None:
        self._kind = kind
        self.schema: Schema | None = None
        self._own: Schema = {}
        self._wrapped = False
        if kind is None:
            return
        self._own = schema_of(kind)
        self._wrapped = self._own.get("type") != "object"
        self.schema = object_of({_VALUE: self._own}, [_VALUE]) if self._wrapped else self._own

    def complaint(self, message: Message) -> str | None:
        """What is wrong with a reply, for the model to correct; None if nothing is."""
        if self.schema is None:
            return None
        try:
            self._value(message.text)
        except ArgumentsUnfit as error:
            return (
                f"This reply does not have the form that was asked for. {error} Reply again, with fitting JSON alone."
            )
        return None

    def read(self, message: Message | None) -> Any:
        """The value of a reply; None if no type was asked for."""
        return None if self.schema is None or message is None else self._value(message.text)

    def _value(self, text: str) -> Any:
        """By the first way to read it that fits; else what is wrong with the most likely one."""
        assert self.schema is not None
        wrong: list[str] = []
        for given, where in self._meant(text):
            found, problems = read_value(given, self._own, self._kind, where)
            if not problems:
                return found
            wrong = wrong or problems
        _, why = read_json(_bare(text))
        if why is not None:
            raise ArgumentsUnfit(f"The reply is not JSON ({why}): {quoted(text)}. It must be {listed(self.schema)}.")
        raise ArgumentsUnfit(f"The reply does not fit: {several(wrong)}. It must be {listed(self.schema)}.")

    def _meant(self, text: str) -> Iterator[tuple[Any, str]]:
        """What a reply may mean, the most likely first, and where that stands in it."""
        bare = _bare(text)
        given, why = read_json(bare)
        if not self._wrapped:
            if why is None:
                yield given, ""
            return
        if isinstance(given, dict) and set(given) == {_VALUE}:
            yield given[_VALUE], _VALUE
        if why is None:
            yield given, "" if isinstance(given, dict) else _VALUE
        # Words without quotes are text, unless they look like JSON that was cut off.
        if (why is not None and not bare.startswith(("{", "["))) or isinstance(given, int | float):
            yield text, _VALUE
            yield bare, _VALUE


def _bare(text: str) -> str:
    """JSON without the fence that models like to put around it."""
    found = text.strip()
    fence = _FENCE.match(found)
    return found if fence is None else found[fence.end() :].removesuffix("```").strip()
