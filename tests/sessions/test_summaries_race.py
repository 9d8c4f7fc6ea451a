"""While a summary is being made, people go on talking: nothing is lost, and nothing is covered twice.

The summarizer itself does what others do meanwhile (say, take back, pin, fork, summarise, reset, close), through
other clients, so every interleaving can be repeated from its seed. A plain list says what must be left.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.client.session import Session
from holdfast.errors import Conflict, SessionClosed, SummaryFailed
from holdfast.flow.compaction import summaries as compaction_summaries
from holdfast.flow.compaction.threads import COMPACT_TRIES
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary
from tests.model import sessions_look as look
from tests.model import sessions_ops as ops
from tests.model import sessions_ops_edit as edit
from tests.model.sessions_life_model import Talk
from tests.model.sessions_model import Line, Note, Said, Spec
from tests.model.sessions_ops_life import end
from tests.model.sessions_walk import Walk
from tests.scale import seeded, volume

PER_RACE = 5
OUTCOMES = {"nothing", "summary", "Conflict", "SummaryFailed", "SessionClosed"}
MEANWHILE: dict[Callable[[Walk], None], int] = {
    ops.say: 40,
    edit.rewind: 12,
    edit.pin: 4,
    edit.fork: 4,
    edit.compact: 14,
    end: 3,
}


class Try(NamedTuple):
    """One run of the summarizer: what it was given, what it said, and whether that had changed by then."""

    old: list[Said]
    text: str | None
    edited: bool


class Race(Walk):
    """One thread that is summarised again and again, and everybody else."""

    careful = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, None)
        self.talk = self.talks["a"] = Talk(self.clock.now_ms())
        self.clients[0].hf.session("a")
        self.talk.add(Line("main"), self.clock.now_ms())
        self.line = self.talk.lines["main"]
        self.tries: list[Try] = []
        self.made: list[Note] = []
        self.bodies: dict[str, Message] = {}
        self.hurry = 0.1

    def pick(self) -> tuple[str, Talk, Line]:
        return "a", self.talk, self.line

    def begin(self) -> None:
        """Something to summarise, in the first thread or in a branch."""
        for _ in range(3):
            self.talk_a_while()
        if self.random.random() < 0.4:
            edit.fork(self)
            self.line = self.random.choice(list(self.talk.lines.values()))
        self.talk_a_while()

    def talk_a_while(self) -> None:
        """Mostly all calls are answered, so that there is something to summarise; what was closed begins anew."""
        if self.talk.status in ("closing", "closed"):
            self.engine.fails = False
            self.session("a", "main").reset()
            self.talk.end("reset", reset=True)
            self.talk.offer(fails=False)
        if self.random.random() < 0.9:
            specs = [Spec("tool", self.word(), answers=[id]) for id in sorted(self.line.waiting)]
        else:
            specs = [Spec("assistant", self.word(), calls=["p1"])]
        specs += [Spec("user", self.word()), Spec("assistant", self.word())]
        ops.append(self, "a", self.talk, self.line, specs, None)

    # one interleaving

    def run(self) -> str:
        """Summarise while others go on; gives how that ended."""
        keep, whole = self.random.choice((0, 1, 1, 2)), self.random.random() < 0.3
        self.hurry = self.random.choice((0.1, 0.1, 0.9))
        self.tries = []
        session = self.session("a", self.line.name)
        made: Summary | None = None
        outcome = "nothing"
        try:
            made = session.compact(keep, whole=whole, summarizer=lambda given: self.summarise(given, keep, whole))
        except (Conflict, SummaryFailed, SessionClosed) as error:
            outcome = type(error).__name__
        if made is not None:
            outcome = "summary"
            old = set(self.tries[-1].old)
            kept = [note for note in self.line.notes if note.home != self.line.name or not set(note.said) <= old]
            self.made.append(Note(made.id, self.line.name, made.text, tuple(self.tries[-1].old)))
            self.line.notes = [*kept, self.made[-1]]
        self.check(outcome, keep, whole)
        return outcome

    def summarise(self, given: Sequence[Message], keep: int, whole: bool) -> str:
        old = self.line.old(keep, whole)
        assert {message.id for message in given if message.id} == {said.id for said in old}, "other messages"
        if any(said.id not in self.bodies for said in old):
            said_here = self.session("a", self.line.name).messages()
            self.bodies.update({message.id: replace(message, pinned=False) for message in said_here})
        text = self.random.choice((*(f"S{self.words}.{len(self.tries)}",) * 5, "", None))
        edited = self.others()
        self.tries.append(Try(old, text, edited))
        if text is None:
            raise ConnectionError("the model is not there")
        return text

    def others(self) -> bool:
        """What happens meanwhile; says whether any of it changed what was said before."""
        edited = False
        for _ in range(self.random.choice((0, 1, 1, 2, 3))):
            self.steps += 1
            said, notes, over = list(self.line.said), list(self.line.notes), self.line.ended
            weights = MEANWHILE if self.random.random() > self.hurry else {edit.compact: 1, edit.rewind: 1}
            self.random.choices(list(weights), list(weights.values()))[0](self)
            same = self.line.said[: len(said)] == said and self.line.notes == notes and self.line.ended == over
            edited = edited or not same
        return edited

    def check(self, outcome: str, keep: int, whole: bool) -> None:
        assert all(one.text and one.edited for one in self.tries[:-1]), "it was tried again without need"
        last = self.tries[-1] if self.tries else None
        again = last is None or (bool(last.text) and last.edited)
        expected = {
            "nothing": again and (self.line.fresh or not self.line.old(keep, whole)),
            "SessionClosed": again and self.line.ended and not self.line.fresh,
            "SummaryFailed": last is not None and not last.text,
            "Conflict": last is not None and again and len(self.tries) == COMPACT_TRIES,
            "summary": last is not None and bool(last.text) and not last.edited,
        }
        assert expected[outcome], f"{outcome} after {self.tries}"
        look.at_summaries(self.session("a", self.line.name), self.line)

    def end(self) -> None:
        """Every summary that was made gives back what was said, byte for byte; and all threads are what they were."""
        session = self.session("a", self.line.name)
        for note in (note for note in self.made if note.home == self.line.name):
            found = [replace(message, pinned=False) for message in session.compaction.expand(note.id)]
            assert found == [self.bodies[said.id] for said in note.said], "not what was said"
        for line in self.talk.lines.values():
            look.at_line(self, "a", line)
        assert self.clients[0].hf.journal.verify().findings == ()


def race_once(seed: int) -> Counter[str]:
    """Several summaries of one thread, each with everything that happens meanwhile."""
    race = Race(seed)
    try:
        race.begin()
        found: Counter[str] = Counter()
        for _ in range(PER_RACE):
            outcome = race.run()
            found[outcome] += bool(race.tries)
            race.talk_a_while()
        race.end()
        return found
    except Exception as error:
        last = "\n".join(race.log)
        raise AssertionError(f"{type(error).__name__}: {error}\nrace seed {seed}, after:\n{last}") from error
    finally:
        race.close()


def test_a_summary_and_everything_that_happens_meanwhile() -> None:
    random = seeded("summaries race")
    outcomes: Counter[str] = Counter()
    while outcomes.total() < volume(1_000, 10_000):
        outcomes += race_once(random.randrange(2**32))
    assert set(outcomes) == OUTCOMES, outcomes


# the race can be lost


def written_whatever_happened(patch: pytest.MonkeyPatch) -> None:
    original = compaction_summaries.write_summary

    def note(env: Any, plan: Any, text: str, **how: Any) -> Any:
        return original(env, replace(plan, at_version=2**60), text, **how)

    patch.setattr(compaction_summaries, "write_summary", note)


def planned_again_when_written(patch: pytest.MonkeyPatch) -> None:
    """What is covered is looked up when the words are there: then they stand for what nobody put into them."""
    original = compaction_summaries.write_summary

    def note(env: Any, plan: Any, text: str, **how: Any) -> Any:
        newer = compaction_summaries.plan_summary(env, plan.stream, keep=lambda messages: 0) or plan
        return original(env, newer, text, **how)

    patch.setattr(compaction_summaries, "write_summary", note)


@pytest.mark.parametrize("plant", [written_whatever_happened, planned_again_when_written])
def test_a_planted_bug_is_noticed(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(30):
        race_once(seed)
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                race_once(seed)
            except AssertionError as noticed:
                print(str(noticed).splitlines()[0])
                return
    pytest.fail("30 races did not notice")


# with real threads


def test_threads_that_talk_while_others_summarise(tmp_path: Any) -> None:
    talking, turns, numbers = 3, volume(8, 400), count(1)
    with holdfast.open(tmp_path / "race.db", durability="fast") as hf, holdfast.open(tmp_path / "race.db") as other:
        chat, stop = hf.session("a"), threading.Event()
        wrong: list[BaseException] = []

        def guarded(work: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    wrong.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def talk(name: str) -> Callable[[], None]:
            def work() -> None:
                for turn in range(turns):
                    chat.append([f"{name} {turn}", {"role": "assistant", "content": f"yes, {name} {turn}"}])

            return work

        def summarise(client: holdfast.Holdfast) -> Callable[[], None]:
            def work() -> None:
                session = client.session("a")
                while not stop.is_set():
                    try:
                        session.compact(keep=3, summarizer=lambda messages: f"S{next(numbers)}")
                    except Conflict:
                        continue

            return work

        talkers = [guarded(talk(f"t{number}")) for number in range(talking)]
        others = [guarded(summarise(client)) for client in (hf, other)]
        for thread in talkers:
            thread.join()
        stop.set()
        for thread in others:
            thread.join()
        assert wrong == []
        _nothing_lost(chat, talking, turns)
        assert hf.journal.verify().findings == ()


def _nothing_lost(chat: Session, talking: int, turns: int) -> None:
    texts = [message.text for message in chat.messages()]
    assert len(texts) == talking * turns * 2
    for number in range(talking):
        said = [text for text in texts if text.startswith(f"t{number} ")]
        assert said == [f"t{number} {turn}" for turn in range(turns)]
    summaries = chat.compaction.summaries()
    covered = [message.text for summary in summaries for message in chat.compaction.expand(summary)]
    assert covered == texts[: len(covered)]
    assert len({summary.text for summary in summaries}) == len(summaries)
