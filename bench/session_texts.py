"""The words of a conversation: texts of about 1 KB that read like English, the same for everybody who is measured.

Standard library only: the peers' process reads this file as well.
"""

from __future__ import annotations

import random
from functools import cache

VOCABULARY = """
about account address after again agent agreed airline allergic already although amount another answer anything
appointment approve arrive asked attached available balance because before between booking both bought branch brought
budget calendar called cancel carefully catalogue change charged checked city claim closed colleague comes company
compare complete confirm contract correct cost could country customer daily damaged date daughter decided delayed
delivery depends describe details different discount document does doubt during early economy either email engineer
enough evening every everything example expected expensive explain export family fare few finally find first flight
follow forgot found free friday from gave general gift given good happened have hotel hours however hundred important
import included insurance instead invoice issue itself january journey keep known large last later least leave letter
limit list little london long luggage made manager many matter maybe means meeting member message might minutes missing
monday money month morning moved much names nearly need never next night nothing noticed number offer office often only
open option order other our outside overnight package page paid paper parcel part passenger past payment people perhaps
person phone place plan please policy possible prefer price probably problem process promised purchase question quickly
quite rather reached ready really reason receipt received record refund remain remember repair replaced reply report
request reserved resolve return right same saturday schedule seat second seems send sent service several shipped short
should shown similar since single small someone soon still street such sunday supplier support sure table taken team
than thank that their them then there these thing think third this those though thousand through thursday ticket time
today together tomorrow total toward train travel tried trouble tuesday twice under understand unless until usual value
very visit voucher wait want warehouse week well went were what when where whether which while whole window with within
without wonder word work would write wrong year yesterday your
"""
SHORT = "a and as at but for if in is it of on or so the to was we"
SYLLABLES = "an ar bel ca dor el fen gri ho is ka lin mor na ol per qui ra sen ti ul ves wen xa yor zu"
SYLLABLE = SYLLABLES.split()
BAG = VOCABULARY.split() + SHORT.split() * 14
SIZE = 1_024
VARIES = 100
POOL = 1_000
"""Texts after which a very long conversation begins again with the first."""


@cache
def text(number: int) -> str:
    """One text of about 1 KB, always the same for a number.

    Names, numbers and codes of its own are in it, as they are in real conversations: a tokenizer that remembers
    words has not seen them all.
    """
    chance = random.Random(number)
    size = SIZE - VARIES + _below(chance, 2 * VARIES)
    names = ["".join(chance.choices(SYLLABLE, k=3)).capitalize() for _ in range(3)]
    sentences: list[str] = []
    length = 0
    while length < size:
        sentences.append(_sentence(chance, names))
        length += len(sentences[-1]) + 1
    return " ".join(sentences)[: size - 1].rstrip(" ,.?!") + "."


def _sentence(chance: random.Random, names: list[str]) -> str:
    words = chance.choices(BAG, k=6 + _below(chance, 13))
    words[0] = words[0].capitalize()
    at = _below(chance, len(words))
    kind = chance.random()
    if kind < 0.15:
        words[at] = f"{names[0][:2].upper()}-{100 + _below(chance, 900)}"
    elif kind < 0.4:
        words[at] = str(2 + _below(chance, 400))
    elif kind < 0.8:
        words[at] = names[_below(chance, len(names))]
    if chance.random() < 0.4:
        words[len(words) // 2] += ","
    return " ".join(words) + "....?!"[_below(chance, 6)]


def _below(chance: random.Random, limit: int) -> int:
    """Good enough for words, and several times quicker than `randrange`."""
    return int(chance.random() * limit)


def texts(start: int, count: int) -> list[str]:
    """Some texts in a row."""
    return [text(number) for number in range(start, start + count)]


def role(number: int) -> str:
    """People and models take turns."""
    return "assistant" if number % 2 else "user"
