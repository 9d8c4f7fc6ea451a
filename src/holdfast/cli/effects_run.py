"""`holdfast effects run`: give effects to their sinks, once or until stopped.

Only sinks that are known here are worked on: the built-in ones and the webhooks that are named. A secret is
read from the environment, never from an argument that every user of the machine can see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from holdfast.ambient import SystemClock
from holdfast.cli.effects import SinkName, waiting
from holdfast.cli.main import OK
from holdfast.cli.opening import JournalPath, Json, Tenant, open_existing, switch
from holdfast.cli.output import Waiting, emit, note, say
from holdfast.client.effects import Effects
from holdfast.errors import InvalidValue
from holdfast.records.effects import BUILT_IN, Dispatched
from holdfast.webhook import WebhookSink

AT_ONCE = 100
"""So many effects between two steps of the bar."""
EVERY_SECONDS = 1.0
SAID = {
    "applied": "applied",
    "skipped": "skipped",
    "failed": "failed and tried again later",
    "deferred": "put off",
    "dead": "dead: see `holdfast effects`",
}


def run(
    path: JournalPath = None,
    /,
    *,
    webhook: Annotated[
        list[str] | None, switch("A sink's name and where it posts to: name=https://…; may be repeated.")
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        switch("The variable with the webhooks' secret; repeated, one for each webhook in order."),
    ] = None,
    sink: SinkName = None,
    once: Annotated[bool, switch("Do what is due and end, instead of going on until Ctrl-C.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Give effects to their sinks."""
    hooks = _webhooks(webhook or [], secret_env or [])
    names = _names(hooks, sink)
    with open_existing(path, tenant) as hf:
        for name, hook in hooks.items():
            hf.effects.add_sink(name, hook)
        if once:
            _once(hf.effects, names, json=json)
            return OK
        _for_ever(hf.effects, names, json=json)
    return OK


def _webhooks(given: Sequence[str], variables: Sequence[str]) -> dict[str, WebhookSink]:
    if variables and not given:
        raise InvalidValue("--secret-env is for webhooks. Name one with --webhook, or leave it out.")
    if given and len(variables) not in (1, len(given)):
        raise InvalidValue("Give --secret-env once for all webhooks, or once for each of them in the same order.")
    found: dict[str, WebhookSink] = {}
    for place, text in enumerate(given):
        name, equals, url = text.partition("=")
        if not equals or name in found:
            raise InvalidValue("--webhook must be name=https://…, each name once.")
        found[name] = WebhookSink(url, secret=_secret(variables[place if len(variables) > 1 else 0]))
    return found


def _secret(variable: str) -> str | bytes:
    secret = os.environ.get(variable, "")
    if not secret:
        raise InvalidValue(f"The variable {variable} is not set or empty. Put the webhook's secret into it.")
    # The environment holds bytes; those that are no text are a secret as well.
    return secret if secret.isprintable() else os.fsencode(secret)


def _names(hooks: dict[str, WebhookSink], only: str | None) -> list[str]:
    """The sinks that are worked on; those that are not known here are left to whoever knows them."""
    known = [*sorted(BUILT_IN), *hooks]
    if only is None:
        return known
    if only not in known:
        raise InvalidValue(f"--sink must be one of {', '.join(known)}, not {only!r:.60}. Name others with --webhook.")
    return [only]


def _once(effects: Effects, names: Sequence[str], *, json: bool) -> None:
    with Waiting("effects") as progress:
        total = sum(1 for info in effects.pending() if info.sink in names)
        done = _round(effects, names, total, progress)
        left = waiting(effects)
    counts = msgspec.to_builtins(done)
    if json:
        emit({**counts, "waiting": len(left)})
        return
    say(_summary(counts))
    others = sorted({info.sink for info in left if info.sink not in names})
    if others:
        note(f"Effects for other sinks wait: {', '.join(others[:8])}. Name webhooks with --webhook.")


def _for_ever(effects: Effects, names: Sequence[str], *, json: bool) -> None:
    """Until Ctrl-C. What others declare or what is due again is seen within a second."""
    if not json:
        note("Dispatching effects. Stop with Ctrl-C.")
    while True:
        done = _round(effects, names, None, None)
        if done.attempts and json:
            emit(msgspec.to_builtins(done))
        elif done.attempts:
            say(_summary(msgspec.to_builtins(done)))
        SystemClock().sleep(EVERY_SECONDS)


def _round(
    effects: Effects, names: Sequence[str], total: int | None, progress: Callable[[int, int], None] | None
) -> Dispatched:
    """Everything that is due, some at a time; no more than there was, so that it ends while others declare more."""
    counts: dict[str, Any] = {}
    attempts = 0
    for name in names:
        while total is None or attempts < total:
            part = effects.dispatch(sink=name, limit=AT_ONCE)
            if not part.attempts:
                break
            for outcome, count in msgspec.to_builtins(part).items():
                counts[outcome] = counts.get(outcome, 0) + count
            attempts += part.attempts
            if progress is not None and total is not None:
                progress(attempts, total)
    return Dispatched(**counts)


def _summary(counts: dict[str, int]) -> str:
    said = [f"{count:,} {SAID[outcome]}" for outcome, count in counts.items() if count]
    return f"Effects: {', '.join(said)}." if said else "No effect was due."
