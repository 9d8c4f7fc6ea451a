"""A turn's steps and calls: model answers, tool intents and outcomes, and questions about tool calls.

A call's intent is in the journal before it is handed out, and it is answered once. Each is one append over two
streams. The frame that works for a tool call has the call's id; it begins with the intent and ends with the outcome. A
question suspends the call's own frame, so that parallel tools can wait in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import budgets, calls, evidence, lifecycle
from holdfast.core.frames import questions as rules
from holdfast.core.frames.next_step import pending_questions
from holdfast.core.frames.stack import has_live_children, live_frame, walk_leaf_first
from holdfast.core.values import exception_text
from holdfast.core.wire.read import read_input
from holdfast.core.wire.tools import describe_call, describe_misfit
from holdfast.errors import (
    CallNotFound,
    FrameSuspended,
    InvalidMessage,
    InvalidValue,
    LimitExceeded,
    Refused,
    ToolPairingError,
)
from holdfast.flow.frames import lifecycle as frame_lifecycle
from holdfast.flow.frames import questions
from holdfast.flow.frames.lifecycle import change_frame, check_live
from holdfast.flow.frames.read import find_frame_stream, load_current_state
from holdfast.flow.journal import artifacts, telemetry
from holdfast.flow.journal.append import redact_as_configured
from holdfast.flow.packs import briefs
from holdfast.flow.sessions.append import add_cost
from holdfast.flow.sessions.read import thread_state
from holdfast.flow.turns.append import (
    ConversationOver,
    DraftBuilder,
    MessageBatch,
    TurnPlace,
    add_facts,
    append_to_turn,
)
from holdfast.flow.turns.turns import REPLY, TurnEnd, find_call_message, find_frame_turn, find_stop_request
from holdfast.ports import Env
from holdfast.records.events.calls import CallContent, ModelResponded, ToolRequested, ToolReturned
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameSuspendedFacts as Suspended
from holdfast.records.events.frames import GoalContent, OutcomeContent, QuestionContent
from holdfast.records.frames import FrameLimits, FrameState, StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult, ToolDef
from holdfast.records.packs import MAIN_ROLE, AssembledPack
from holdfast.records.recovery import Answer, QuestionInfo
from holdfast.records.usage import Usage


class TurnCall(msgspec.Struct, eq=False, kw_only=True):
    """A call that waits for its outcome."""

    answered: bool = False
    answering: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def check_unanswered(self) -> None:
        """Refuse a second outcome."""
        if self.answered:
            raise Refused("This step was answered already. Go on to the next one.")

    def answer_once(self) -> AnswerBlock:
        """Answer the call in this block. Refuse others meanwhile; if the block raises, it can be answered again."""
        return AnswerBlock(self)


class AnswerBlock(msgspec.Struct):
    """A block in which a call is answered."""

    call: TurnCall

    def __enter__(self) -> None:
        if not self.call.answering.acquire(blocking=False):
            raise Refused("Another caller is answering this step. Go on to the next one.")
        try:
            self.call.check_unanswered()
        except BaseException:
            self.call.answering.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.call.answered = self.call.answered or kind is None
        finally:
            self.call.answering.release()


class TurnModelCall(TurnCall, eq=False):
    """A model call with its pack. `repeated`: an earlier process may have made it."""

    call: str
    packed: AssembledPack
    model: str
    digest: str | None = None
    repeated: bool = False

    def __repr__(self) -> str:
        return f"CallModel({self.model!r}, call={self.call!r})"


class TurnToolCall(TurnCall, eq=False):
    """A tool call. `args` replace the model's arguments if a person changed or approved them."""

    request: ToolCallRequest
    attempt: int
    answer: Answer | None
    args: Any

    def __repr__(self) -> str:
        return f"CallTool({self.request.name!r}, key={self.request.id!r})"


class TurnQuestions(msgspec.Struct, frozen=True):
    """The open questions that the whole turn waits for."""

    questions: tuple[QuestionInfo, ...]


EngineStep = TurnModelCall | TurnToolCall | TurnQuestions | TurnEnd


class ToolCallStart(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that is about to be made."""

    request: ToolCallRequest
    if_interrupted: str = "ask"
    attempt: int = 1
    tokens: int | None = None
    """The tokens granted to its frame; if None, zero in a turn with a limited budget, else unlimited."""
    message: int = 0
    """The version of the message that asks for the call."""
    arguments: Any = None
    """Arguments that replace the model's, because a person changed them."""


class ToolCallReturn(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a tool call."""

    result: Any
    failed: bool = False
    interrupted: bool = False
    policy: str | None = None
    """The compaction policy of the result."""


def read_response(response: Any, finish: str | None = None) -> Message:
    """Read the assistant's message from a response, a message in some form, or text.

    The finish reason is added to it, so that later readers know it as well.
    """
    if isinstance(response, str) and not response:
        raise InvalidMessage("The model's answer is empty. Use step.fail(…) if it gave none.")
    found = [Message(role="assistant", content=response)] if isinstance(response, str) else read_input(response)
    if len(found) != 1 or found[0].role != "assistant":
        raise InvalidMessage(
            "A model's answer is one assistant message. Give the provider's response, or the message in it."
        )
    if not isinstance(finish, str) or not finish or finish == found[0].finish:
        return found[0]
    return replace(found[0], metadata={**(found[0].metadata or {}), "finish": finish})


def error_text(error: BaseException | str) -> str:
    """Return an error as text."""
    if isinstance(error, BaseException):
        return exception_text(error)
    if not isinstance(error, str) or not error:
        raise InvalidValue("Say what went wrong: an exception, or a text.")
    return error


def error_usage(usage: object) -> Usage:
    """Return the usage that an error reports, or none."""
    return usage if isinstance(usage, Usage) else Usage()


def add_edit_note(call: TurnToolCall, value: Any) -> Any:
    """Return a result, with a note if a person changed the arguments or approved more than the model wrote."""
    if call.args is None:
        return value
    used = msgspec.json.encode(call.args).decode()
    note = f"[A person changed the arguments of this call to {used}.]"
    if _is_filled_in(call):
        note = f"[This call was made with the arguments that a person approved: {used}.]"
    if isinstance(value, str):
        return f"{note}\n{value}"
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [{"type": "text", "text": note}, *value]
    return {"note": note, "result": value}


def _is_filled_in(call: TurnToolCall) -> bool:
    """Return True if all arguments of the model are used, and others besides."""
    try:
        wrote = call.request.args
    except InvalidValue:
        return False
    if not isinstance(wrote, dict) or not isinstance(call.args, dict):
        return False
    return all(value is None or call.args.get(name) == value for name, value in wrote.items())


def end_turn_model_call(
    env: Env,
    turn: TurnPlace,
    call: str,
    message: Message,
    *,
    model: str | None,
    usage: Usage | int,
    doubtful: Usage | None,
    may_end: bool,
    release: int | None,
    start: Callable[[ToolCallRequest], ToolCallStart] | None = None,
) -> tuple[Message, Usage | None, list[ToolCallStart]]:
    """Journal a model's answer; return the message, the turn's usage if it ended, and the tool calls that have begun.

    `model` is the name the call was begun with: not every reply names its model. With `start`, the intents of the tool
    calls it asks for are in the same commit, for a caller that starts all of them at once.
    """
    record = add_cost(env, budgets.to_usage(usage), message.model or model)
    told = message.usage is not None or record.spent or record.cost
    said = replace(message, usage=record) if told else message
    total, begun = Usage(), list[ToolCallStart]()

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        nonlocal total, begun
        frame = check_live(env, state, turn.frame)
        growing = DraftBuilder(state, env.clock.now_ms())
        facts = ModelResponded(
            call=call,
            frame=turn.frame,
            usage=record,
            finish=message.finish,
            stream=turn.thread,
            message=speech.versions[0],
            doubtful=doubtful,
        )
        growing.add(calls.end_call(state, facts))
        news_since = state.version > frame.calls[call].version
        frame = growing.state.frames[turn.frame]
        total = frame.usage
        # A message arrived after the model's pack was built: the model has not answered it yet.
        unseen = speech.thread.newest > speech.thread.packed
        calls_tools, begun = bool(speech.facts[0].calls), []
        ends = may_end and not calls_tools and not unseen and not _has_open_work(growing.state, frame)
        starts = start if calls_tools else None
        # A stop accepted before the reply was stored is honoured: the turn is stopped, and the reply is kept.
        if (ends or starts) and not (news_since and find_stop_request(env, turn) is not None):
            if starts is not None:
                begun = _begin_requested(env, turn, growing, speech, starts)
            else:
                _end_turn(growing, turn, speech.ids[0])
        return growing.drafts

    messages, changed = append_to_turn(env, turn, [said], decide, release=release, call=call)
    telemetry.end_span(env, call, usage=record, finish=message.finish, error=None)
    _note_begun(env, turn, begun)
    return messages[0], total if "frame.popped" in map(itemgetter(0), changed.facts) else None, begun


def _begin_requested(
    env: Env,
    turn: TurnPlace,
    growing: DraftBuilder,
    speech: MessageBatch,
    start: Callable[[ToolCallRequest], ToolCallStart],
) -> list[ToolCallStart]:
    """Add the intents of all calls that a reply asks for; add none if a limit or a question keeps them from beginning.

    The next step then finds them not begun, and does what is to be done.
    """
    named = zip(speech.messages[0].tool_calls, speech.facts[0].calls, strict=True)
    wanted = [replace(start(replace(call, id=id)), message=speech.versions[0]) for call, (id, _) in named]
    trial = DraftBuilder(growing.state, growing.now)
    try:
        _draft_tool_starts(env, turn, trial, _prepare_starts(env, wanted))
    except (LimitExceeded, FrameSuspended):
        return []
    growing.drafts, growing.state = [*growing.drafts, *trial.drafts], trial.state
    return wanted


def _has_open_work(state: StreamState, frame: FrameState) -> bool:
    """Return True if a frame's own work is unfinished: a model's message is kept, but its turn cannot end yet."""
    return bool(frame.calls) or frame.question is not None or has_live_children(state.frames, frame)


def _end_turn(growing: DraftBuilder, turn: TurnPlace, reply: str) -> None:
    growing.add(evidence.add_result(growing.state, turn.frame, REPLY, reply, None))
    states = {turn.actor: growing.state}
    growing.add(lifecycle.pop(states, turn.actor, turn.frame, "completed", OutcomeContent())[turn.actor])


def finish_turn(env: Env, turn: TurnPlace, reply: Message, *, release: int | None = None) -> bool:
    """End a turn whose newest message is the model's; return False if a message or a stop request came meanwhile."""

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        check_live(env, state, turn.frame)
        growing = DraftBuilder(state, env.clock.now_ms())
        if speech.thread.newest == reply.version and find_stop_request(env, turn) is None:
            _end_turn(growing, turn, reply.id)
        return growing.drafts

    changed = append_to_turn(env, turn, (), decide, release=release)[1]
    return "frame.popped" in map(itemgetter(0), changed.facts)


def begin_tool_calls(env: Env, turn: TurnPlace, wanted: Sequence[ToolCallStart]) -> None:
    """Journal that tools are about to be called: an intent and a frame for each, in one append."""
    prepared = _prepare_starts(env, wanted)

    def decide(state: StreamState) -> list[Draft]:
        growing = DraftBuilder(state, env.clock.now_ms())
        _draft_tool_starts(env, turn, growing, prepared)
        return growing.drafts

    change_frame(env, turn.frame, decide)
    _note_begun(env, turn, wanted)


PreparedStart = tuple[ToolCallStart, CallContent | None, GoalContent]
"""A tool call about to be made, with the content of its intent and the goal of its frame, redacted."""


def _prepare_starts(env: Env, wanted: Sequence[ToolCallStart]) -> list[PreparedStart]:
    edits = [None if one.arguments is None else CallContent(arguments=one.arguments) for one in wanted]
    goals = [GoalContent(goal=describe_call(one.request)) for one in wanted]
    return [
        (one, redact_as_configured(env, edit), redact_as_configured(env, goal))
        for one, edit, goal in zip(wanted, edits, goals, strict=True)
    ]


def _draft_tool_starts(env: Env, turn: TurnPlace, growing: DraftBuilder, wanted: Sequence[PreparedStart]) -> None:
    """Add an intent and a frame for each call; refuse all of them if one exceeds a limit."""
    now = growing.now
    calls.check_tool_calls(growing.state, calls.check_can_work(growing.state, turn.frame, now), len(wanted))
    for one, content, goal in wanted:
        frame = growing.state.frames.get(one.request.id)
        if frame is not None and frame.question is not None:  # With the intent, or a crash would lose the answer.
            growing.add(rules.resume(growing.state, frame.id, now=now))
        facts = ToolRequested(
            call=one.request.id,
            frame=turn.frame,
            name=one.request.name,
            if_interrupted=one.if_interrupted,
            stream=turn.thread,
            message=one.message,
            attempt=one.attempt,
        )
        growing.add(calls.begin_call(growing.state, facts, content, now))
        if frame is None:
            growing.add(draft_tool_frame(env, turn, growing.state, one, goal))


def _note_begun(env: Env, turn: TurnPlace, begun: Sequence[ToolCallStart]) -> None:
    for one in begun:
        env.states.frame_streams.put((env.tenant, one.request.id), turn.actor)
        tool, attempt = one.request.name, one.attempt
        telemetry.begin_span(
            env, one.request.id, frame=turn.frame, conversation=turn.thread, tool=tool, attempt=attempt
        )


def draft_tool_frame(
    env: Env, turn: TurnPlace, state: StreamState, one: ToolCallStart, goal: GoalContent
) -> list[Draft]:
    parent = live_frame(state, turn.frame)
    unlimited = parent.tokens.available is None
    (draft,) = lifecycle.push(
        {turn.actor: state},
        turn.actor,
        one.request.id,
        parent=(turn.actor, turn.frame),
        tokens=one.tokens if one.tokens is not None else None if unlimited else 0,
        default=FrameLimits(),
        content=goal,
        now=env.clock.now_ms(),
    )[turn.actor]
    return [add_facts(draft, tool_call=True)]


def end_turn_tool_call(
    env: Env,
    turn: TurnPlace,
    request: ToolCallRequest,
    came: ToolCallReturn,
    *,
    files: Sequence[bytes] = (),
    answered: bool = False,
) -> Message:
    """Journal a tool's outcome: the result in the thread, the outcome of the intent, the end of the call's frame.

    `files` are bodies that no message holds: they are kept as artifacts, which the outcome names. `answered` means
    that the outcome is a person's answer to the question that the call waits for.
    """
    answer = ToolCallResult(
        tool_call_id=request.id,
        result=came.result,
        is_error=came.failed,
        provider_id=request.provider_id,
        interrupted=came.interrupted,
    )
    message = Message(role="tool", tool_results=(answer,), policy=came.policy)
    bodies = [artifacts.prepare_artifact(env, body) for body in files]
    names = tuple(dict.fromkeys(one.name.hex() for one in bodies))

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        check_live(env, state, turn.frame)
        if not answered:
            _check_answerable(state, request.id)
        placed = {"stream": turn.thread, "message": speech.versions[0], "artifacts": names}
        return _draft_tool_end(env, turn, state, request.id, came, **placed)

    now = load_current_state(env, turn.actor)
    if not answered:
        _check_answerable(now, request.id)
    cancel_outside_children(env, now, request.id)
    try:
        said = append_to_turn(env, turn, [message], decide, placed=bodies)[0][0]
        problem = "interrupted" if came.interrupted else "tool_failed" if came.failed else None
        telemetry.end_span(env, request.id, error=problem)
        return said  # noqa: TRY300  # The handler below covers another outcome.
    except (ConversationOver, ToolPairingError):
        # The call was rewound or answered elsewhere: there is no place for the result any more.
        drop_tool_call(env, turn, request.id, came)
        return message


def drop_tool_call(env: Env, turn: TurnPlace, call: str, came: ToolCallReturn) -> None:
    """End the intent and the frame of a call that no longer waits for a result; append no message."""
    cancel_outside_children(env, load_current_state(env, turn.actor), call)
    change_frame(env, turn.frame, lambda state: _draft_tool_end(env, turn, state, call, came))


def _check_answerable(state: StreamState, call: str) -> None:
    """Refuse an outcome while the tool waits for an answer, even if its code swallowed the exception."""
    frame = state.frames.get(call)
    asked = [] if frame is None else pending_questions(state.frames, frame)
    if asked:
        raise FrameSuspended(
            f"The call {call} waits for an answer to question {asked[0].id}, so nothing else counts as its "
            "outcome. Answer the question; the tool runs again then.",
            question=asked[0].id,
        )


def _draft_tool_end(
    env: Env, turn: TurnPlace, state: StreamState, call: str, came: ToolCallReturn, **placed: Any
) -> list[Draft]:
    """Return the drafts that end a call's intent, and its frame with everything unfinished below it."""
    growing = DraftBuilder(state, env.clock.now_ms())
    if call in live_frame(state, turn.frame).calls:
        failed, interrupted = came.failed, came.interrupted
        facts = ToolReturned(call=call, frame=turn.frame, failed=failed, interrupted=interrupted, **placed)
        growing.add(calls.end_call(state, facts))
    frame = growing.state.frames.get(call)
    if frame is not None:
        status = "failed" if came.failed or _has_open_work(growing.state, frame) else "completed"
        content = OutcomeContent(error="failed") if status == "failed" else OutcomeContent()
        growing.add(lifecycle.pop({turn.actor: growing.state}, turn.actor, call, status, content)[turn.actor])
    return growing.drafts


def cancel_outside_children(env: Env, state: StreamState, frame: str) -> None:
    """Cancel a frame's children in other streams first: one append covers only the turn's two streams."""
    live = state.frames
    if frame not in live:
        return
    for one in (*walk_leaf_first(live, frame), live[frame]):
        for child in one.away:
            frame_lifecycle.pop_frame(env, child, "cancelled", OutcomeContent(error="What it worked for has ended."))


def ask_about_call(
    env: Env,
    turn: TurnPlace,
    one: ToolCallStart,
    content: QuestionContent,
    *,
    kind: str = "approval",
    call: str | None = None,
) -> str:
    """Ask a question about a call and suspend the call's frame, pushing it if needed; return the question's id.

    An earlier question that is due is resumed in the same append; its answer is kept.
    """
    question, content = ulid_text(env.ids.ulid()), redact_as_configured(env, content)
    goal = redact_as_configured(env, GoalContent(goal=describe_call(one.request)))

    def decide(state: StreamState) -> list[Draft]:
        now = env.clock.now_ms()
        growing, frame = DraftBuilder(state, now), state.frames.get(one.request.id)
        if frame is None:
            growing.add(draft_tool_frame(env, turn, state, one, goal))
        elif frame.question is not None and rules.is_resumable(frame.question, now):
            growing.add(rules.resume(state, frame.id, now=now))
        facts = Suspended(frame=one.request.id, question=question, kind=kind, prior="active", call=call)
        under = walk_leaf_first(growing.state.frames, one.request.id)
        below = [ulid_text(env.ids.ulid()) for frame in under if frame.question is None]
        growing.add(
            rules.suspend(growing.state, facts, content, subtree=True, release=True, below=below, leave_away=True)
        )
        return growing.drafts

    change_frame(env, turn.frame, decide)
    env.states.frame_streams.put((env.tenant, one.request.id), turn.actor)
    return question


# Parameters of a tool whose code is not available here


def find_stored_tool(env: Env, thread: str, name: str) -> ToolDef | None:
    """Return a tool as a conversation's brief defines it, or None."""
    found = briefs.brief_context(env, thread, MAIN_ROLE).available_tools
    return next((one for one in found if one.name == name), None)


def check_edited_arguments(env: Env, arguments: Any, *, question: str | None = None, token: str | None = None) -> None:
    """Refuse arguments that the tool can never take, as far as its schema is known; the question stays open."""
    frame_id, answered = questions.find_question_frame(env, question, token)
    asked = None if answered else _find_called_tool(env, frame_id)
    tool = None if asked is None else find_stored_tool(env, *asked)
    why = None if tool is None else describe_misfit(tool.name, tool.parameters, arguments)
    if why is not None:
        raise InvalidValue(f"{why}. Give all of them: args replaces what the model wrote, and is not merged with it.")


def _find_called_tool(env: Env, frame_id: str) -> tuple[str, str] | None:
    """Return the thread and the tool name of the call that a frame works for; None if it works for none."""
    actor = find_frame_stream(env, frame_id)
    live = load_current_state(env, actor).frames
    frame = live.get(frame_id)
    turn = None if frame is None or frame.parent is None else live.get(frame.parent)
    at = None if turn is None else find_frame_turn(env, TurnPlace(actor=actor, thread=""), turn)
    if at is None or frame_id not in thread_state(env, at.thread).calls:
        return None
    message = find_call_message(env, at, frame_id, ())
    return next(((at.thread, call.name) for call in message.tool_calls if call.id == frame_id), None)


def read_newest_answer(env: Env, turn: TurnPlace, call: str) -> Answer | None:
    """Return the answer to the question that a call waits for; None if there is no answer yet."""
    frame = load_current_state(env, turn.actor).frames.get(call)
    if frame is None or frame.question is None:
        raise CallNotFound(f"No question about call {call} is open.")
    return questions.read_answer(env, turn.actor, frame.question.id)
