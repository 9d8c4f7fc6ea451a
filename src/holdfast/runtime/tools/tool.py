"""`@tool`: makes a typed function callable by a model, while it stays a function.

    @tool(needs_approval=lambda amount: amount > 100, timeout=20)
    def refund(order: int, amount: float, call: ToolCall) -> str:
        "Pay an order back."
        return shop.refund(order, amount, idempotency_key=call.key)

Mistakes are reported when the tool is made, not when a model calls it. The model's description comes from the type
hints and the docstring. A parameter of the type ToolCall (AsyncToolCall in an `async def`) is filled in by the
runtime; the model never sees it. Where it is in doubt whether a call needs approval, it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, get_args, overload

from holdfast.core.checks import is_number
from holdfast.core.values import discard_awaitable
from holdfast.core.wire.tools import default_arguments
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools.arguments import check_required, read_arguments, read_object
from holdfast.runtime.tools.run import ThreadRunner, run_function
from holdfast.runtime.tools.schema import Schema, to_strict
from holdfast.runtime.tools.signature import ToolSignature, check_tool_name, read_signature

P = ParamSpec("P")
R = TypeVar("R")

IfInterrupted = Literal["ask", "retry", "fail"]
Approval = bool | Callable[..., bool]
_POLICIES: Final = get_args(IfInterrupted)
_VARIADIC_KINDS: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Tool(Generic[P, R]):
    """A function with its description for a model and the rules for its calls. Made by `@tool`."""

    def __init__(
        self,
        function: Callable[P, R],
        definition: ToolDef,
        *,
        signature: ToolSignature | None = None,
        needs_approval: Approval = False,
        if_interrupted: IfInterrupted | None = None,
        timeout: float | None = None,
        tokens: int | None = None,
    ) -> None:
        check_tool_name(definition.name)
        self.function, self.definition = function, definition
        self.needs_approval = check_approval(definition.name, needs_approval, signature.kinds if signature else None)
        self.if_interrupted: IfInterrupted = _check_policy(definition.name, if_interrupted, "ask")
        self.if_unknown: IfInterrupted = _check_policy(definition.name, if_interrupted, "fail")
        self.timeout = _check_timeout(definition.name, timeout)
        if tokens is not None and not is_number(tokens, least=0):
            raise InvalidValue(
                f"tokens of {definition.name} is {tokens!r:.40}. Give a whole number of tokens, or None."
            )
        self.tokens = tokens
        self.is_async = inspect.iscoroutinefunction(function)
        self._signature = signature
        self.__wrapped__ = function
        self.__name__ = definition.name
        self.__doc__ = getattr(function, "__doc__", None)

    @property
    def name(self) -> str:
        """The tool's name for the model."""
        return self.definition.name

    @property
    def description(self) -> str | None:
        """The description that the model is given."""
        return self.definition.description

    @property
    def parameters(self) -> Schema:
        """The JSON schema of its arguments."""
        return self.definition.parameters

    @property
    def wants_call(self) -> bool:
        """True if it has a parameter for the call itself."""
        return self._signature is not None and self._signature.call is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    def read(self, arguments: str) -> dict[str, Any]:
        """Read arguments as a model wrote them as values for the function. ArgumentsUnfit says what to correct."""
        if self._signature is not None:
            return read_arguments(self.name, arguments, self._signature.schema, self._signature.kinds)
        given = read_object(self.name, arguments)
        check_required(self.name, self.parameters, given)
        return given

    def default_arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of arguments that are not among these values, as far as they have a form in JSON."""
        return default_arguments(self.parameters if self._signature is None else self._signature.schema, args)

    def requires_approval(self, args: Mapping[str, Any]) -> bool:
        """Return True if a person must approve a run with these values. A predicate that fails counts as True."""
        return is_approval_needed(
            self.needs_approval, {**(self._signature.defaults if self._signature else {}), **args}
        )

    async def run(self, args: Mapping[str, Any], call: object, in_thread: ThreadRunner) -> R:
        """Run the tool with values from `read`: an `async def` right here, a `def` in a thread.

        Raises ToolTimedOut after its timeout. A thread cannot be stopped: its work then goes on, and its result is
        dropped.
        """
        given = dict(args)
        if self._signature is not None and self._signature.call is not None:
            given[self._signature.call] = call
        made = run_function(self.name, self.function, given, in_thread, is_async=self.is_async, timeout=self.timeout)
        return cast("R", await made)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


AnyTool = Tool[..., Any]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    needs_approval: Approval = False,
    if_interrupted: IfInterrupted | None = None,
    timeout: float | None = None,
    name: str | None = None,
    description: str | None = None,
    tokens: int | None = None,
    strict: bool | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    needs_approval: Approval = False,
    if_interrupted: IfInterrupted | None = None,
    timeout: float | None = None,
    name: str | None = None,
    description: str | None = None,
    tokens: int | None = None,
    strict: bool | None = None,
) -> Any:
    """Make a tool of a typed function, bare as `@tool` or with options.

    `needs_approval` says whether a person has to agree first: True, False, or a function of the arguments by name.
    `if_interrupted` is the policy for a call that was begun and has no outcome: ask a person, retry with the same key
    because it is idempotent, or fail. By default a person is asked after a crash, and after the `timeout`, in seconds,
    the model is told that the call may have run. `tokens` is the grant of the frame that each call runs in. `strict`
    holds the model to the schema where a provider offers that.
    """

    def made(function: Callable[..., Any]) -> AnyTool:
        if isinstance(function, Tool):
            raise InvalidValue(f"{function.name} is a tool already. Make it once, with all its options.")
        signature = read_signature(function, name, description)
        parameters = to_strict(signature.schema) if strict else signature.schema
        definition = ToolDef(
            name=signature.name, description=signature.description, parameters=parameters, strict=strict
        )
        return Tool(
            function,
            definition,
            signature=signature,
            needs_approval=needs_approval,
            if_interrupted=if_interrupted,
            timeout=timeout,
            tokens=tokens,
        )

    return made if function is None else made(function)


def _check_policy(name: str, given: Any, otherwise: IfInterrupted) -> Any:
    if given is None:
        return otherwise
    if given not in _POLICIES:
        raise InvalidValue(f"if_interrupted of {name} is {given!r:.40}. Say 'ask', 'retry' or 'fail'.")
    return given


def _check_timeout(name: str, given: Any) -> float | None:
    if given is None:
        return None
    if not is_number(given, whole=False) or given <= 0:
        raise InvalidValue(f"timeout of {name} is {given!r:.40}. Give seconds above 0, or None for no limit.")
    return float(given)


def check_approval(tool: str, given: Any, parameters: Mapping[str, Any] | None) -> Approval:
    """Check `needs_approval`: a bool, or a function of some of the arguments by name, or of `args` as a mapping."""
    if isinstance(given, bool):
        return given
    if not callable(given):
        raise InvalidValue(f"needs_approval of {tool} is {given!r:.40}. Say True, False, or give a function.")
    if inspect.iscoroutinefunction(given):
        raise InvalidValue(f"needs_approval of {tool} is async. Give a plain function: it decides by the arguments.")
    wanted = _parameter_names(given)
    unknown = [name for name in wanted or () if parameters is not None and name not in parameters]
    if unknown and wanted != ["args"]:
        raise InvalidValue(
            f"needs_approval of {tool} asks for {', '.join(unknown)}, which the tool does not take. "
            "Name its parameters as the tool does, or take one mapping named args."
        )
    return given  # type: ignore[no-any-return]


def is_approval_needed(needs: Approval, args: Mapping[str, Any]) -> bool:
    """Return True if these arguments need approval. A predicate that fails, or does not decide, counts as True."""
    if isinstance(needs, bool):
        return needs
    try:
        wanted = _parameter_names(needs)
        if wanted == ["args"] and "args" not in args:
            verdict: Any = needs(dict(args))
        else:
            verdict = needs(**{name: value for name, value in args.items() if wanted is None or name in wanted})
        return discard_awaitable(verdict) or bool(verdict)
    except Exception:  # noqa: BLE001  it is the caller's own code
        return True


def _parameter_names(predicate: Callable[..., Any]) -> list[str] | None:
    """Return the names of the arguments that a predicate takes; None if it takes all."""
    try:
        parameters = inspect.signature(predicate).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return None
    return [name for name, one in parameters.items() if one.kind not in _VARIADIC_KINDS]
