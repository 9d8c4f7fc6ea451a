"""The type that an agent's replies must have: as a schema for the model, and as values for whoever asked."""

from __future__ import annotations

from string import ascii_letters
from typing import Any, Final

from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import Message
from holdfast.runtime.tools.arguments import read_arguments
from holdfast.runtime.tools.schema import object_of, schema_of

_VALUE: Final = "value"


class Output:
    """What replies must be: anything, or of one type. Types that are no objects stand in one, as `value`."""

    def __init__(self, kind: Any = None) -> None:
        self._kind = kind
        self.schema: dict[str, Any] | None = None
        self._wrapped = False
        if kind is None:
            return
        found = schema_of(kind)
        self._wrapped = found.get("type") != "object"
        self.schema = object_of({_VALUE: found}, [_VALUE]) if self._wrapped else found

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
        given = _bare(text)
        wrapped = given if self._wrapped else f'{{"{_VALUE}": {given}}}'
        schema = self.schema if self._wrapped else object_of({_VALUE: self.schema or {}}, [_VALUE])
        assert schema is not None
        return read_arguments("the reply", wrapped, schema, {_VALUE: self._kind})[_VALUE]


def _bare(text: str) -> str:
    """JSON without the fence that models like to put around it."""
    found = text.strip()
    if found.startswith("```"):
        found = found[3:].removesuffix("```").lstrip(ascii_letters).strip()
    return found
