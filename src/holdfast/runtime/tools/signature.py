"""A function's signature read as a tool: its name, description and parameters, and the parameter for the call."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.core.wire.tools import is_tool_name
from holdfast.errors import InvalidValue
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.schema import Schema, SchemaBuilder, default_entry, object_schema, parse_docstring

_NAMED_KINDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a tool, read from its function. `call` names the parameter that receives the call itself."""

    name: str
    description: str | None
    schema: Schema
    kinds: dict[str, Any]
    defaults: dict[str, Any]
    call: str | None


def read_signature(function: Any, name: str | None = None, description: str | None = None) -> ToolSignature:
    """Read the signature of a typed function; raise an InvalidValue that says what to change."""
    title = _tool_name(function, name)
    parameters, hints = _read_parameters(title, function), _resolve_hints(title, function)
    text, about = parse_docstring(inspect.getdoc(function))
    shapes = SchemaBuilder()
    properties: dict[str, Schema] = {}
    kinds: dict[str, Any] = {}
    call = None
    for parameter in parameters:
        kind = hints.get(parameter.name, inspect.Parameter.empty)
        if kind is inspect.Parameter.empty:
            raise InvalidValue(
                f"{parameter.name} of the tool {title} has no type. Write one, as in {parameter.name}: str."
            )
        if _is_call(kind):
            call = _check_call_parameter(title, parameter.name, kind, call, inspect.iscoroutinefunction(function))
            continue
        kinds[parameter.name] = kind
        properties[parameter.name] = _build_property(title, shapes, parameter, kind, about.get(parameter.name))
    given = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    defaults = {name: default for name, default in given.items() if name in kinds}
    schema = object_schema(properties, [one for one in kinds if one not in defaults])
    return ToolSignature(
        name=title,
        description=text if description is None else description,
        schema={**schema, "$defs": shapes.named} if shapes.named else schema,
        kinds=kinds,
        defaults=defaults,
        call=call,
    )


def check_tool_name(name: Any) -> str:
    """Return a name that every provider accepts; refuse others."""
    if not isinstance(name, str) or not is_tool_name(name):
        raise InvalidValue(
            f"{name!r:.80} cannot name a tool. Use 1 to 64 letters of a-z and A-Z, digits, _ and -; "
            "@tool(name=…) gives a function another name."
        )
    return name


def _tool_name(function: Any, name: str | None) -> str:
    if isinstance(function, type) or not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise InvalidValue(f"{function!r:.80} cannot be a tool. Give a function made with def or async def.")
    title = check_tool_name(function.__name__ if name is None else name)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue(f"The tool {title} is a generator. Return a list instead of yielding.")
    return title


def _read_parameters(title: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    for one in found:
        if one.kind not in _NAMED_KINDS:
            raise InvalidValue(
                f"{one} of the tool {title} cannot be given by name. Models give every argument by its name: "
                "write each parameter out, without *, ** and /."
            )
        if one.name == "self" and one.annotation is inspect.Parameter.empty:
            raise InvalidValue(f"The tool {title} is a method without its object. Make the tool of thing.{title}.")
    return found


def _resolve_hints(title: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001  annotations are any code at all
        raise InvalidValue(
            f"A type of the tool {title} cannot be found: {error}. Define and import it at the top of the module, "
            "not under TYPE_CHECKING or inside a function."
        ) from None


def _build_property(
    title: str, shapes: SchemaBuilder, parameter: inspect.Parameter, kind: Any, about: str | None
) -> Schema:
    try:
        found = shapes.build(kind)
    except InvalidValue as error:
        raise InvalidValue(f"{parameter.name} of the tool {title}: {error}") from None
    if about is not None and "description" not in found:
        found = {**found, "description": about}
    return found if parameter.default is inspect.Parameter.empty else {**found, **default_entry(parameter.default)}


def _is_call(kind: Any) -> bool:
    if get_origin(kind) in (Union, types.UnionType):
        return any(_is_call(one) for one in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, ToolCall | AsyncToolCall)


def _check_call_parameter(title: str, name: str, kind: Any, known: str | None, is_async: bool) -> str:
    if known is not None:
        raise InvalidValue(f"The tool {title} asks for its call twice: {known} and {name}. Keep one of them.")
    right, made = (AsyncToolCall, "async def") if is_async else (ToolCall, "def")
    kinds = get_args(kind) or (kind,)
    if not any(isinstance(one, type) and issubclass(one, right) for one in kinds):
        raise InvalidValue(f"The tool {title} is made with {made}: annotate {name} as {right.__name__}.")
    return name
