"""The type that an agent's replies must have: as a schema for the model, and as values for whoever asked.

Providers want an object, so a type that is none stands in one: `{"value": …}`. Models that were told so write the value
alone all the same, so both are read. What is wrong with a reply is said in words that the model can act on. One that
was cut off is no value unless its JSON is whole: the 12 of a 1200 that was cut off fits, and is wrong.
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
_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""What providers say of a reply that came to the end of its length."""
_FORM: Final = "does not have the form that was asked for."
_MAYBE: Final = "So nobody knows whether it is all of the value."


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
        cut = message.finish in _CUT
        try:
            self._value(message.text)
            wrong = f"{_MAYBE} It must be {listed(self.schema)}." if cut and not _is_closed(message.text) else None
        except ArgumentsUnfit as error:
            wrong = str(error)
        if wrong is None:
            return None
        if cut:
            said = f"This reply was cut off before its end ({message.finish:.40})."
            return f"{said} {wrong} Reply again, shorter, with fitting JSON alone."
        early = "" if message.finish is None else f" did not end by itself ({message.finish:.40}) and"
        return f"This reply{early} {_FORM} {wrong} Reply again, with fitting JSON alone."

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


def _is_closed(text: str) -> bool:
    """Whether it is JSON that says itself where it ends. A number, or a bare word, may be the beginning of another."""
    bare = _bare(text)
    return bare.startswith(("{", "[", '"')) and read_json(bare)[1] is None


def _bare(text: str) -> str:
    """JSON without the fence that models like to put around it."""
    found = text.strip()
    fence = _FENCE.match(found)
    return found if fence is None else found[fence.end() :].removesuffix("```").strip()
