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

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast, get_args, overload

from holdfast.core.numbers import is_number
from holdfast.core.values import discard_awaitable
from holdfast.core.wire.tools import default_arguments
from holdfast.errors import ArgumentsUnfit, InvalidValue, ToolFailed, ToolTimedOut
from holdfast.flow.turns.tool_calls import ToolRules, lower_first_letter
from holdfast.records.compaction import priority_of
from holdfast.records.messages import ToolCallRequest, ToolDef
from holdfast.runtime.tools.arguments import arguments_json, check_required, read_arguments, read_object
from holdfast.runtime.tools.schema import Schema, to_strict
from holdfast.runtime.tools.signature import ToolSignature, check_tool_name, read_signature

P = ParamSpec("P")
R = TypeVar("R")

IfInterrupted = Literal["ask", "retry", "fail"]
Approval = bool | Callable[..., bool]
ThreadRunner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""A runner of functions in a thread. Cancelling the await must abandon the thread, even while the function goes on."""
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
        policy: str | None = None,
    ) -> None:
        check_tool_name(definition.name)
        self.function, self.definition, name = function, definition, definition.name
        self.needs_approval = check_approval(name, needs_approval, signature.kinds if signature else None)
        if if_interrupted is not None and if_interrupted not in _POLICIES:
            raise InvalidValue(f"if_interrupted of {name} is {if_interrupted!r:.40}. Say 'ask', 'retry' or 'fail'.")
        self.if_interrupted: IfInterrupted = if_interrupted or "ask"
        self.if_unknown: IfInterrupted = if_interrupted or "fail"
        if timeout is not None and (not is_number(timeout, whole=False) or timeout <= 0):
            raise InvalidValue(f"timeout of {name} is {timeout!r:.40}. Give seconds above 0, or None for no limit.")
        self.timeout = None if timeout is None else float(timeout)
        if tokens is not None and not is_number(tokens, least=0):
            raise InvalidValue(f"tokens of {name} is {tokens!r:.40}. Give a whole number of tokens, or None.")
        self.tokens, self.policy = tokens, policy
        priority_of(policy)  # It refuses an unknown policy.
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
            return read_arguments(self.definition.name, arguments, self._signature.schema, self._signature.kinds)
        given = read_object(self.name, arguments)
        check_required(self.name, self.parameters, given)
        return given

    def default_arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of arguments that are not among these values, as far as they have a form in JSON."""
        return default_arguments(self.parameters if self._signature is None else self._signature.schema, args)

    def requires_approval(self, args: Mapping[str, Any]) -> bool:
        """Return True if a person must approve a run with these values. A predicate that fails counts as True."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        given = {**(self._signature.defaults if self._signature else {}), **args}
        try:
            wanted = _parameter_names(self.needs_approval)
            if wanted == ["args"] and "args" not in given:
                verdict: Any = self.needs_approval(given)
            else:
                kept = {name: value for name, value in given.items() if wanted is None or name in wanted}
                verdict = self.needs_approval(**kept)
            return discard_awaitable(verdict) or bool(verdict)
        except Exception:  # noqa: BLE001  it is the caller's own code
            return True

    async def run(self, args: Mapping[str, Any], call: object, in_thread: ThreadRunner) -> R:
        """Run the tool with values from `read`: an `async def` right here, a `def` in a thread.

        Raises ToolTimedOut after its timeout. A thread cannot be stopped: its work then goes on, and its result is
        dropped.
        """
        given = dict(args)
        if self._signature is not None and self._signature.call is not None:
            given[self._signature.call] = call
        name, timeout = self.definition.name, self.timeout
        # The time limit starts when the function does. A tool is user code: what it raises passes through,
        # except SystemExit, KeyboardInterrupt, a cancellation of itself, GeneratorExit and StopIteration, which would
        # end or hang the waiter, or the event loop that all others share.
        try:
            async with asyncio.timeout(timeout if self.is_async else None) as timer:
                if self.is_async:
                    return cast("R", await _run_async(name, self.function, given))
                loop = asyncio.get_running_loop()

                def start_timer() -> None:
                    with suppress(RuntimeError):  # It has already ended.
                        timer.reschedule(loop.time() + (timeout or 0))

                def work() -> Any:
                    if timeout is not None:
                        with suppress(RuntimeError):  # The loop is closed, and its waiters are gone.
                            loop.call_soon_threadsafe(start_timer)
                    return _run_sync(name, self.function, given)

                return cast("R", await in_thread(work))
        except TimeoutError:
            if not timer.expired():
                raise  # The tool's own: something it waited for timed out.
            raise ToolTimedOut(
                f"{name} did not end within {timeout:g} seconds. It may or may not have taken effect."
            ) from None

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
    policy: str | None = None,
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
    policy: str | None = None,
    strict: bool | None = None,
) -> Any:
    """Make a tool of a typed function, bare as `@tool` or with options.

    `needs_approval` says whether a person has to agree first: True, False, or a function of the arguments by name.
    `if_interrupted` is the policy for a call that was begun and has no outcome: ask a person, retry with the same key
    because it is idempotent, or fail. By default a person is asked after a crash, and after the `timeout`, in seconds,
    the model is told that the call may have run. `tokens` is the grant of the frame that each call runs in. `policy`
    decides how compaction may treat what the tool returns, as in Session.append. `strict` holds the model to the schema
    where a provider offers that.
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
            policy=policy,
        )

    return made if function is None else made(function)


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


def _parameter_names(predicate: Callable[..., Any]) -> list[str] | None:
    """Return the names of the arguments that a predicate takes; None if it takes all."""
    try:
        parameters = inspect.signature(predicate).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return None
    return [name for name, one in parameters.items() if one.kind not in _VARIADIC_KINDS]


async def _run_async(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    own = asyncio.current_task()
    try:
        return await function(**given)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # A cancellation from outside.
        raise _failure(name, error) from None
    except GeneratorExit as error:
        if own is None or _current_task() is not own:
            raise  # The coroutine is being closed, and must not go on.
        raise _failure(name, error) from None
    except (SystemExit, KeyboardInterrupt) as error:
        raise _failure(name, error) from None


def _current_task() -> asyncio.Task[Any] | None:
    """Return the current task, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _run_sync(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except StopIteration as error:
        raise ToolFailed(f"{name} raised StopIteration: it asked an iterator for more than it had.") from error
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit) as error:
        raise _failure(name, error) from None


def _failure(name: str, error: BaseException) -> ToolFailed:
    if isinstance(error, KeyboardInterrupt):
        return ToolFailed(f"{name} raised KeyboardInterrupt, as if somebody had wanted the whole process to end.")
    if isinstance(error, SystemExit):
        return ToolFailed(f"{name} tried to end the whole process (exit {error.code!r:.80}) and was kept from it.")
    if isinstance(error, GeneratorExit):
        return ToolFailed(f"{name} raised GeneratorExit, as if it were a generator that is being closed.")
    return ToolFailed(f"{name} was cancelled by something that it waited for.")


class AgentRules(ToolRules):
    """Rules for tool calls, taken from the tools themselves."""

    tools_ask = True
    knows_tools = True

    def __init__(self, tools: Mapping[str, AnyTool]) -> None:
        self._tools = tools  # Nothing of the rules by name applies.

    def call_terms(self, request: ToolCallRequest) -> tuple[str, int | None]:
        """Return the tool's own policy for interrupted calls, and the token grant of its frames."""
        tool = self._tools.get(request.name)
        return ("ask", None) if tool is None else (tool.if_interrupted, tool.tokens)

    def needs_approval(self, request: ToolCallRequest) -> bool:
        """Return True if the tool needs approval for these arguments. Unparseable calls are not worth a question."""
        tool = self._tools.get(request.name)
        try:
            return tool is not None and tool.requires_approval(tool.read(request.arguments))
        except ArgumentsUnfit:
            return False

    def starts_at_once(self, request: ToolCallRequest) -> bool:
        """Return True unless a person, or a function of the caller's, decides about calls of this tool."""
        tool = self._tools.get(request.name)
        return tool is None or tool.needs_approval is False

    def find_misfit(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> str | None:
        """Return why a call cannot be repeated: its tool is gone, or its arguments no longer fit; None if it can."""
        tool = self._tools.get(request.name)
        if tool is None:
            return f"there is no tool {request.name} any more"
        try:
            tool.read(arguments_json(request, arguments))
        except ArgumentsUnfit as error:
            # Advice meant for a model is left out: a person reads this.
            return lower_first_letter(str(error).removesuffix(" Correct them and call again."))
        return None

    def default_arguments(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> Mapping[str, Any]:
        """Return the tool's defaults for arguments that were left out."""
        tool = self._tools.get(request.name)
        try:
            return {} if tool is None else tool.default_arguments(tool.read(arguments_json(request, arguments)))
        except ArgumentsUnfit:
            return {}
