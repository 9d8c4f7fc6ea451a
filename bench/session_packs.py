"""The newest 8 000 tokens of 1 000 messages and of 100 000: the same work, in counts.

Both conversations end with the same words, so what is shown is the same. It is read by a client that has been at
work but has no window of this size, by one that was just opened and knows nothing, and by one that packed just before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.counting import Counts, counting
from bench.counts import difference
from bench.harness import Contender, ratios, repeated, rounds, spread
from bench.journals import journal
from bench.report import Line, at_most, ratio_line
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import POOL, role, text
from holdfast.client.holdfast import Holdfast
from holdfast.ports import Env

BUDGET = 8_000
OTHER = 6_000
"""What somebody else asks for in between: of a line, one window is kept."""
SMALL = 1_000
APART = 10
COUNTED = ("statements", "vm_steps", "pages_read")
SAMPLE = 20


def name_of(messages: int) -> str:
    """A journal for each length."""
    return f"packs-{messages}.db"


def build(place: Path, messages: int) -> None:
    """A conversation of so many messages, in lists of 1 000; once for a length."""
    if (place / name_of(messages)).exists():
        return
    made = [{"role": role(number), "content": text(number)} for number in range(POOL)]
    with journal(place, name_of(messages), durability="fast") as env:
        session = Holdfast(env, owner=False).session("alice", system=SYSTEM, model=MODEL)
        for _ in range(messages // POOL):
            session.append(made)


def packing(env: Env, budget: int = BUDGET) -> Callable[[], int]:
    """Packs the newest tokens; gives how many messages that is."""
    session = Holdfast(env, owner=False).session("alice", create=False)
    return lambda: session.pack(budget).conversation.message_count


def forget(env: Env) -> None:
    """Let go of everything that packs left: ends of conversations, and what a model is told first."""
    if env.recent is not None:
        env.recent.clear()


def warm(place: Path, messages: int, *, known: bool = False) -> tuple[Counts, int]:
    """What one pack of a client at work asks of SQLite, and how much it shows; `known`, it packed the same before."""
    total = Counts()
    with journal(place, name_of(messages)) as env:
        pack, other = packing(env), packing(env, OTHER)
        shown = pack()
        for _ in range(SAMPLE):
            if not known:
                other()
            with counting(env.journal) as counts:
                assert pack() == shown
            total.add(counts)
    return total.per(SAMPLE), shown


def cold(place: Path, messages: int) -> Counts:
    """What taking the session up and the first pack ask."""
    with journal(place, name_of(messages)) as env, counting(env.journal) as counts:
        packing(env)()
    return counts


def lines(place: Path, quick: bool) -> list[Line]:
    """Counts at both lengths, then times in the same rounds."""
    large = 10_000 if quick else 100_000
    for messages in (SMALL, large):
        build(place, messages)
    (few, shown), (many, _) = warm(place, SMALL), warm(place, large)
    lengths = f"{SMALL:,} against {large:,} messages"
    found = [
        *_compared(f"pack({BUDGET:,})", lengths, few, many, f"{shown} messages shown"),
        *_compared(f"opened anew and pack({BUDGET:,})", lengths, cold(place, SMALL), cold(place, large), ""),
        _known(place, large),
    ]
    with ExitStack() as stack:
        contenders = {
            str(messages): _anew(stack.enter_context(journal(place, name_of(messages)))) for messages in (SMALL, large)
        }
        samples = rounds(contenders, 5 if quick else 15)
    times = " and ".join(f"{1000 * spread(values).median:.2f} ms" for values in samples.values())
    what = f"time of pack({BUDGET:,}), {large:,} against {SMALL:,} messages"
    return [*found, ratio_line(what, ratios(samples, str(large), str(SMALL)), None, times)]


def _anew(env: Env) -> Contender:
    """Seconds of one pack, many in a row, each as if it were the first."""
    pack = packing(env)

    def act() -> None:
        forget(env)
        pack()

    return repeated(act, SAMPLE)


def _known(place: Path, messages: int) -> Line:
    """A few statements, whose pages would be as many percent as there are levels in a tree: no bar."""
    counts, _ = warm(place, messages, known=True)
    note = f"{counts.vm_steps:,.0f} VM steps, {counts.pages_read:,.0f} pages, at {messages:,} messages"
    return Line(what=f"pack({BUDGET:,}) again, nothing new: statements", value=counts.statements, note=note)


def _compared(what: str, lengths: str, few: Counts, many: Counts, note: str) -> list[Line]:
    found = []
    for name in COUNTED:
        small, large = getattr(few, name), getattr(many, name)
        shown = name.replace("vm_", "VM ").replace("_", " ")
        figures = f"{small:,.0f} and {large:,.0f}"
        found.append(
            Line(
                what=f"{what}: {shown}, {lengths}",
                value=difference(small, large),
                unit="% apart",
                bar=at_most(APART),
                note=f"{figures}; {note}" if note else figures,
            )
        )
    return found
