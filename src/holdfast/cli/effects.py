"""`holdfast effects`: declared effects that are not settled, lane by lane, and what people decide about them.

A lane is what one scope declared for one sink. Its effects go in order, so the first one says why the others wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.ambient import SystemClock
from holdfast.cli.main import OK
from holdfast.cli.opening import JournalPath, JournalPathFirst, Json, Tenant, journal_and, open_existing, spelled
from holdfast.cli.output import (
    Waiting,
    aligned,
    brief,
    compact,
    console,
    emit,
    facts_table,
    fields,
    note,
    printable,
    span,
    tell,
    widest,
)
from holdfast.cli.show import when
from holdfast.cli.tree import words
from holdfast.client.effects import Effects
from holdfast.records.effects import FINAL, EffectInfo
from holdfast.records.events.envelope import Erased

COLUMNS = ("effect", "kind", "sink", "scope", "status", "attempts", "next try", "reason")
REASON = 160
STYLES = {"pending": "green", "approval": "yellow", "failed": "yellow", "deferred": "cyan", "dead": "bold red"}

EffectId = Annotated[str | None, Parameter(name="EFFECT", show_default=False, help="The effect's id.")]
Reason = Annotated[str | None, Parameter(show_default=False, help="Why, in words.")]
SinkName = Annotated[str | None, Parameter(show_default=False, help="Only those for this sink.")]


def ls(path: JournalPath = None, /, *, sink: SinkName = None, tenant: Tenant = None, json: Json = False) -> int:
    """Show the effects that wait, lane by lane."""
    with open_existing(path, tenant) as hf, Waiting("effects"):
        found = [info for info in waiting(hf.effects) if sink is None or info.sink == sink]
    if json:
        emit({"effects": [_as_json(info) for info in found]})
        return OK
    if not found:
        note("No effect waits." if sink is None else f"No effect waits for the sink {sink!r}.")
        return OK
    _print(found)
    note(_what_next(found, str(path), tenant))
    return OK


def waiting(effects: Effects) -> list[EffectInfo]:
    """Every effect that is not settled: lane after lane, each in its order."""
    return sorted(chain(effects.pending(), effects.dead()), key=lambda info: (*_lane(info), info.id))


def _lane(info: EffectInfo) -> tuple[str, str]:
    return info.sink, info.scope


def show(path: JournalPathFirst, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> int:
    """Show all that is known of an effect, and what came of it."""
    journal, id = _addressed(path, effect)
    with open_existing(journal, tenant) as hf:
        info = hf.effects.get(id)
    if json:
        emit(_as_json(info))
        return OK
    console().print(facts_table(list(_facts(info))))
    return OK


def retry(path: JournalPathFirst, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> int:
    """Let an effect that is dead, deferred or between attempts be tried at once."""
    return _decide(path, effect, tenant, json, "retried", "It is tried at the next dispatch.", Effects.revive)


def discard(
    path: JournalPathFirst,
    effect: EffectId = None,
    /,
    *,
    reason: Reason = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Take an effect out for good, whatever it waits for."""

    def decide(effects: Effects, id: str) -> None:
        effects.discard(id, reason=reason)

    return _decide(path, effect, tenant, json, "discarded", "It will not be sent; its lane goes on.", decide)


def approve(path: JournalPathFirst, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> int:
    """Let an effect go that waits for approval."""
    return _decide(path, effect, tenant, json, "approved", "It goes at the next dispatch.", Effects.approve)


def reject(
    path: JournalPathFirst,
    effect: EffectId = None,
    /,
    *,
    reason: Reason = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Take an effect out that waits for approval."""

    def decide(effects: Effects, id: str) -> None:
        effects.reject(id, reason=reason)

    return _decide(path, effect, tenant, json, "rejected", "It will not be sent; its lane goes on.", decide)


def _decide(
    path: str,
    effect: str | None,
    tenant: str | None,
    json: bool,
    done: str,
    said: str,
    decide: Callable[[Effects, str], None],
) -> int:
    journal, id = _addressed(path, effect)
    with open_existing(journal, tenant) as hf:
        decide(hf.effects, id)
    tell(json, {"effect": id, "done": done}, f"Effect {id}: {done}. {said}")
    return OK


def _addressed(path: str, effect: str | None) -> tuple[str, str]:
    """The journal, and an effect's id as it is stored, however it was typed."""
    journal, id = journal_and(path, effect, "the effect's id")
    return journal, id.strip().upper()


def _as_json(info: EffectInfo) -> dict[str, Any]:
    """`erased` tells a payload that is gone from one that is null."""
    return {**fields(info), "erased": isinstance(info.payload, Erased)}


def _facts(info: EffectInfo) -> Iterator[tuple[str, str]]:
    yield "effect", info.id
    yield "kind", info.kind
    yield "sink", info.sink
    yield "declared in", info.scope
    yield "by", info.operator or "(nobody said)"
    yield "declared at", when(info.declared_at)
    yield "status", info.status
    yield "attempts", f"{info.attempts:,}"
    if info.status not in FINAL:
        yield "next try", _next_try(info, first=True)
    if info.answer is not None:
        yield "answer", "(erased)" if isinstance(info.answer, Erased) else compact(info.answer)
    yield "reason", words(info.reason, "")
    yield "payload", "(erased)" if isinstance(info.payload, Erased) else compact(info.payload)


def _next_try(info: EffectInfo, *, first: bool) -> str:
    """When an effect is tried, or what it waits for."""
    if info.status == "approval":
        return "when approved"
    if info.status == "dead":
        return "never, unless retried"
    if not first:
        return "after the one before"
    if info.status == "deferred":
        return "when its sink is there"
    left = 0 if info.retry_at is None else info.retry_at - SystemClock().now_ms()
    return f"in {span(left)}" if left > 0 else "now"


def _cells(info: EffectInfo, *, first: bool) -> tuple[str, ...]:
    return (
        info.id,
        printable(info.kind),
        printable(info.sink),
        printable(info.scope),
        info.status,
        f"{info.attempts:,}",
        _next_try(info, first=first),
        words(brief(info.reason, REASON) if isinstance(info.reason, str) else info.reason, ""),
    )


def _rows(found: Iterable[EffectInfo]) -> Iterator[tuple[str, ...]]:
    for _, lane in groupby(found, _lane):
        yield from (_cells(info, first=place == 0) for place, info in enumerate(lane))


def _print(found: Sequence[EffectInfo]) -> None:
    out, rows = console(), list(_rows(found))
    if out.is_terminal:
        out.print(_table(rows))
    else:
        sys.stdout.writelines(aligned([COLUMNS, *rows], widest([COLUMNS, *rows]), (5,)))
        sys.stdout.flush()


def _table(rows: Iterable[tuple[str, ...]]) -> Table:
    """For a terminal: a line for each lane, and its effects below it."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for (sink, scope), lane in groupby(rows, lambda row: (row[2], row[3])):
        table.add_row(Text(f"→ {sink}", style="cyan"), Text(scope, style="dim"))
        for id, kind, _, _, status, attempts, next_try, reason in lane:
            tried = {"0": "", "1": ", 1 attempt"}.get(attempts, f", {attempts} attempts")
            about = Text.assemble((status, STYLES.get(status, "")), f"  {kind}{tried}, {next_try}")
            table.add_row(Text(f"  {id}", style="bold"), about.append(f"\n{reason}" if reason else "", style="dim"))
    return table


def _what_next(found: Sequence[EffectInfo], journal: str, tenant: str | None) -> str:
    """The command that the first of the worst needs."""
    by_status = {info.status: info.id for info in reversed(found)}
    for status, said, command in (
        ("dead", "Try one again with", "effects retry"),
        ("approval", "Approve one with", "effects approve"),
    ):
        if status in by_status:
            return f"{said}: {spelled(command, journal, by_status[status], tenant=tenant)}"
    return f"Look at one with: {spelled('effects show', journal, found[0].id, tenant=tenant)}"
