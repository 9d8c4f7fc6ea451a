"""`holdfast effects`: list declared effects that are not settled, decide about them, and send them.

A lane holds the effects that one scope declared for one sink. They are sent in order, so the first one shows why
the others wait. `run` works only on known sinks: the built-in ones and the webhooks given. A secret is read from
the environment, never from an argument that every user of the machine can see.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Annotated, Any

import msgspec
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.open import (
    JournalPath,
    Json,
    LeadingPath,
    Tenant,
    format_command,
    open_existing,
    option,
    resolve_arguments,
    switch,
)
from holdfast.client.effects import Effects
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.extras.webhook import WebhookSink
from holdfast.flow.effects.outbox import LANE_ERRORS
from holdfast.records.effects import BUILT_IN_SINKS, FINAL_STATUSES, DispatchReport, EffectInfo
from holdfast.records.events.envelope import Erased
from holdfast.system import SystemClock

COLUMNS = ("effect", "kind", "sink", "scope", "status", "attempts", "next try", "reason")
REASON_CHARS = 160
STYLES = {"pending": "green", "approval": "yellow", "failed": "yellow", "deferred": "cyan", "dead": "bold red"}

DECISIONS = {
    "revive": ("retried", "The next dispatch delivers it."),
    "approve": ("approved", "The next dispatch sends it."),
    "reject": ("rejected", "It will not be sent; its lane continues."),
    "discard": ("discarded", "It will not be sent; its lane continues."),
}
"""The methods of `Effects` that decide about one effect, what they did, and what follows."""

EffectId = Annotated[str | None, option("The effect's id.", name="EFFECT")]
Reason = Annotated[str | None, option("The reason, as text.")]
SinkName = Annotated[str | None, option("Only effects for this sink.")]


def ls(path: JournalPath = None, /, *, sink: SinkName = None, tenant: Tenant = None, json: Json = False) -> None:
    with open_existing(path, tenant) as hf, output.ProgressBar("effects"):
        found = [info for info in list_unsettled(hf.effects) if sink is None or info.sink == sink]
    if json:
        output.print_json({"effects": [output.plain_fields(info, "payload") for info in found]})
        return
    if not found:
        whose = "" if sink is None else f" for the sink {sink!r}"
        output.print_note(f"No effects are waiting{whose}.")
        return
    lanes = [list(lane) for _, lane in groupby(found, lambda info: (info.sink, info.scope))]
    rows = [_format_effect(info, first=info is lane[0]) for lane in lanes for info in lane]
    output.print_table(COLUMNS, rows, _build_table, (5,))
    first = min(found, key=lambda info: {"dead": 0, "approval": 1}.get(info.status, 2))
    verb = {"dead": "retry", "approval": "approve"}.get(first.status, "show")
    command = format_command(f"effects {verb}", str(path), first.id, tenant=tenant)
    output.print_note(f"{verb.capitalize()} one with: {command}")


def list_unsettled(effects: Effects) -> list[EffectInfo]:
    """Return every effect that is not settled: lane after lane, each in its order."""
    return sorted(chain(effects.pending(), effects.dead()), key=lambda info: (info.sink, info.scope, info.id))


def show(path: LeadingPath, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> None:
    journal, id = resolve_arguments(path, effect, "the effect's id")
    with open_existing(journal, tenant) as hf:
        info = hf.effects.get(id.strip().upper())
    if json:
        output.print_json(output.plain_fields(info, "payload"))
    else:
        output.console().print(output.facts_table(list(_describe_effect(info))))


def retry(path: LeadingPath, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> None:
    _decide("revive", path, effect, tenant, json)


def discard(
    path: LeadingPath, effect: EffectId = None, /, *, reason: Reason = None, tenant: Tenant = None, json: Json = False
) -> None:
    _decide("discard", path, effect, tenant, json, reason=reason)


def approve(path: LeadingPath, effect: EffectId = None, /, *, tenant: Tenant = None, json: Json = False) -> None:
    _decide("approve", path, effect, tenant, json)


def reject(
    path: LeadingPath, effect: EffectId = None, /, *, reason: Reason = None, tenant: Tenant = None, json: Json = False
) -> None:
    _decide("reject", path, effect, tenant, json, reason=reason)


def _decide(decision: str, path: str, effect: str | None, tenant: str | None, json: bool, **more: Any) -> None:
    done, said = DECISIONS[decision]
    journal, given = resolve_arguments(path, effect, "the effect's id")
    id = given.strip().upper()
    with open_existing(journal, tenant) as hf:
        getattr(hf.effects, decision)(id, **more)
    output.print_result(json, {"effect": id, "done": done}, f"Effect {id}: {done}. {said}")


def _describe_effect(info: EffectInfo) -> Iterator[tuple[str, str]]:
    yield "effect", info.id
    yield "kind", info.kind
    yield "sink", info.sink
    yield "declared in", info.scope
    yield "by", info.operator or "(unknown)"
    yield "declared at", output.format_time(info.declared_at)
    yield "status", info.status
    yield "attempts", f"{info.attempts:,}"
    if info.status not in FINAL_STATUSES:
        yield "next try", _format_next_try(info, first=True)
    if info.answer is not None:
        yield "answer", output.ERASED_TEXT if isinstance(info.answer, Erased) else output.encode_json(info.answer)
    yield "reason", output.format_text(info.reason, "")
    yield "payload", output.ERASED_TEXT if isinstance(info.payload, Erased) else output.encode_json(info.payload)


def _format_next_try(info: EffectInfo, *, first: bool) -> str:
    """Describe when an effect is tried next, or what it waits for."""
    if info.status == "approval":
        return "when approved"
    if info.status == "dead":
        return "never, unless retried"
    if not first:
        return "after the effect before it"
    if info.status == "deferred":
        return "when its sink is available"
    left = 0 if info.retry_at is None else info.retry_at - SystemClock().now_ms()
    return f"in {output.format_duration(left)}" if left > 0 else "now"


def _format_effect(info: EffectInfo, *, first: bool) -> tuple[str, ...]:
    return (
        info.id,
        output.escape_text(info.kind),
        output.escape_text(info.sink),
        output.escape_text(info.scope),
        info.status,
        f"{info.attempts:,}",
        _format_next_try(info, first=first),
        output.format_text(
            output.shorten_text(info.reason, REASON_CHARS) if isinstance(info.reason, str) else info.reason, ""
        ),
    )


def _build_table(rows: Iterable[tuple[str, ...]]) -> Table:
    """Build a table for a terminal: a row for each lane, with its effects below it."""
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


BATCH_SIZE = 100
"""The number of effects between two steps of the progress bar."""
POLL_SECONDS = 1.0
OUTCOME_WORDS = {
    "applied": "applied",
    "skipped": "skipped",
    "failed": "failed and will be retried",
    "deferred": "deferred",
    "dead": "dead: see `holdfast effects`",
}


def run(
    path: JournalPath = None,
    /,
    *,
    webhook: Annotated[list[str] | None, switch("A sink and its URL: name=https://…; may be repeated.")] = None,
    secret_env: Annotated[
        list[str] | None,
        switch("The environment variable with the webhooks' secret; repeat it for one secret per webhook, in order."),
    ] = None,
    sink: SinkName = None,
    once: Annotated[bool, switch("Deliver the effects that are due, then exit.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    hooks = _make_webhooks(webhook or [], secret_env or [])
    # Effects for unknown sinks are left to processes that know them.
    known = [*sorted(BUILT_IN_SINKS), *hooks]
    if sink is not None and sink not in known:
        raise InvalidValue(f"--sink must be one of {', '.join(known)}, not {sink!r:.60}. Name others with --webhook.")
    names = known if sink is None else [sink]
    with open_existing(path, tenant) as hf:
        for name, hook in hooks.items():
            hf.effects.add_sink(name, hook)
        (_run_once if once else _run_forever)(hf.effects, names, json=json)


def _make_webhooks(given: Sequence[str], variables: Sequence[str]) -> dict[str, WebhookSink]:
    if variables and not given:
        raise InvalidValue("--secret-env is for webhooks. Name one with --webhook, or leave it out.")
    if given and len(variables) not in (1, len(given)):
        raise InvalidValue("Give --secret-env once for all webhooks, or once for each of them in the same order.")
    found: dict[str, WebhookSink] = {}
    for place, text in enumerate(given):
        name, equals, url = text.partition("=")
        if not equals or name in found:
            raise InvalidValue("--webhook must be name=https://…, each name once.")
        variable = variables[place if len(variables) > 1 else 0]
        secret = os.environ.get(variable, "")
        if not secret:
            raise InvalidValue(f"The variable {variable} is not set or empty. Put the webhook's secret into it.")
        # The environment holds bytes; bytes that are not text are a valid secret too.
        found[name] = WebhookSink(url, secret=secret if secret.isprintable() else os.fsencode(secret))
    return found


def _run_once(effects: Effects, names: Sequence[str], *, json: bool) -> None:
    with output.ProgressBar("effects") as progress:
        total = sum(1 for info in effects.pending() if info.sink in names)
        counts = _dispatch_due(effects, names, total, progress)
        left = list_unsettled(effects)
    if json:
        output.print_json({**counts, "waiting": len(left)})
        return
    output.print_line(_format_summary(counts))
    others = sorted({info.sink for info in left if info.sink not in names})
    if others:
        output.print_note(
            f"Effects for other sinks are waiting: {', '.join(others[:8])}. Name webhooks with --webhook."
        )


def _run_forever(effects: Effects, names: Sequence[str], *, json: bool) -> None:
    """Dispatch until Ctrl-C. New and due effects are seen within a second."""
    if not json:
        output.print_note("Dispatching effects. Stop with Ctrl-C.")
    while True:
        counts = _dispatch_due(effects, names)
        if any(counts.values()):
            output.print_result(json, counts, _format_summary(counts))
        SystemClock().sleep(POLL_SECONDS)


def _dispatch_due(
    effects: Effects, names: Sequence[str], total: int | None = None, progress: output.ProgressBar | None = None
) -> dict[str, int]:
    """Dispatch all due effects in batches; at most `total`, so that it ends while others declare more."""
    counts = Counter(dict.fromkeys(DispatchReport.__struct_fields__, 0))
    errors: list[HoldfastError] = []
    for name in names:
        try:
            while total is None or counts.total() < total:
                part = effects.dispatch(sink=name, limit=BATCH_SIZE)
                if not part.attempts:
                    break
                counts.update(msgspec.to_builtins(part))
                if progress is not None and total is not None:
                    progress(counts.total(), total)
        except LANE_ERRORS as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return dict(counts)


def _format_summary(counts: dict[str, int]) -> str:
    said = [f"{count:,} {OUTCOME_WORDS[outcome]}" for outcome, count in counts.items() if count]
    return f"Effects: {', '.join(said)}." if said else "No effect was due."
