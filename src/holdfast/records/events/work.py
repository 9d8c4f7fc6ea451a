"""Events of workers, supervision, tasks and workflows."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts


class WorkerReported(Facts, frozen=True):
    """The summary of a worker's turn: ids and counts of its findings, learnings, products and needs."""

    turn: str
    worker: str
    status: str
    task: str | None = None
    frame: str | None = None
    findings: tuple[str, ...] = ()
    learnings: tuple[str, ...] = ()
    escalations: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    rejected: int = 0


class WorkerSignalled(Facts, frozen=True):
    """One live signal: plane control (blocker, help, approval, conflict) or observability."""

    signal: str
    worker: str
    plane: str
    kind: str
    live: str
    task: str | None = None
    frame: str | None = None
    confidence: float | None = None
    urgency: str | None = None
    requires_human: bool = False
    question: str | None = None
    evidence: tuple[str, ...] = ()


class ReportContent(Content, frozen=True):
    """The text of a report or signal."""

    claim: str | None = None
    insight: str | None = None
    reason: str | None = None
    options: list[str] | None = None
    recommended: str | None = None
    report: dict[str, Any] | None = None


class ChildStarted(Facts, frozen=True):
    """A supervisor started a child."""

    child: str
    incarnation: str
    restart: str = "permanent"


class ChildExited(Facts, frozen=True):
    """A child ended; a `normal` end is restarted only if the child is permanent."""

    child: str
    incarnation: str
    normal: bool
    restarts: int = 0
    backoff_ms: int | None = None


class SupervisorEscalated(Facts, frozen=True):
    """A child failed too often; the parent decides."""

    child: str
    restarts: int
    window_ms: int


class TaskCreated(Facts, frozen=True):
    """A task was created: a workflow of nodes with dependencies, by id."""

    task: str
    session: str | None = None
    nodes: tuple[TaskNode, ...] = ()
    revision: int = 1
    failure: str = "fail_fast"
    max_parallel: int | None = None


class TaskNode(Facts, frozen=True):
    """One node of a workflow."""

    node: str
    agent: str | None = None
    depends_on: tuple[str, ...] = ()
    retries: int = 0


class PlanContent(Content, frozen=True):
    """The prompt, the thought, the nodes' texts and the parameters."""

    prompt: str | None = None
    thought: str | None = None
    name: str | None = None
    nodes: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    plan_request: Any = None
    plan_result: Any = None


class TaskModified(Facts, frozen=True):
    """Nodes that had not started were changed."""

    task: str
    revision: int
    nodes: tuple[TaskNode, ...] = ()
    removed: tuple[str, ...] = ()


class TaskChanged(Facts, frozen=True):
    """A task is running, paused, aborted, done or in error."""

    task: str
    status: str
    cause: str | None = None


class TaskDeleted(Facts, frozen=True):
    """A task was deleted; its events stay."""

    task: str


class NodeChanged(Facts, frozen=True):
    """A node is init, running, done, error or skipped."""

    task: str
    node: str
    status: str
    frame: str | None = None
    attempt: int = 1
