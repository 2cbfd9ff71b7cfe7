"""Questions made from ordinary text: a sentence loses a date, number, name or noun phrase, and is asked for it.

The idea is that of Lewis et al. (arXiv 1906.04980): a noisy, rearranged cloze with a question word that fits the kind
of the missing piece teaches reading on any text, without written questions.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from specprefill_cli.training.synthesis import SENTENCE_END, Block, Question, capital

MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
NUMBER_WORD = "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred)"
CAPITALISED = r"[A-Z][\w'\u2019-]+"
STOPS = r"(?=[,.;:)]| (?:of|in|on|for|to|and|or|that|which|who|by|with|from|at|is|was|are|were|has|had|can|as)\b)"


@dataclass(frozen=True)
class Kind:
    """One kind of answer: how it looks in text, and the question words that ask for it."""

    pattern: re.Pattern
    words: tuple[str, ...]
    weight: float


KINDS = (
    Kind(re.compile(rf"\b(?:\d{{1,2}} {MONTH}(?: \d{{4}})?|{MONTH} \d{{1,2}}(?:, \d{{4}})?|{MONTH} \d{{4}})\b"),
         ("When", "When", "On what date", "What date"), 2.0),
    Kind(re.compile(r"\b(?:1[4-9]\d\d|20[0-2]\d)\b"), ("When", "When", "In what year", "What year"), 1.5),
    Kind(re.compile(r"[$£€]\d[\d,.]*\d(?: (?:million|billion|trillion))?"), ("How much", "What amount"), 2.0),
    Kind(re.compile(r"\b\d[\d.,]*(?:%| per ?cent\b)"), ("What percentage", "How much", "What share"), 2.0),
    Kind(re.compile(r"\b\d{1,2}[:.]\d\d(?: ?[ap]\.?m\.?)?|\b\d{1,2} ?[ap]\.m\."), ("When", "At what time"), 2.0),
    Kind(re.compile(rf"\b(?:\d[\d,]*(?:\.\d+)?|{NUMBER_WORD})(?= [a-z])"), ("How many", "How many", "How much"), 1.5),
    Kind(re.compile(r"\b\d[\d,]*(?:\.\d+)? (?:[a-zA-Z]+s|km|kg|m|mm|cm|MB|GB|bytes)\b"),
         ("How long", "How much", "What", "How large"), 1.5),
    Kind(re.compile(rf"(?<=by ){CAPITALISED}(?: {CAPITALISED}){{0,2}}"), ("Who", "By whom"), 1.5),
    Kind(re.compile(rf"(?<=(?: in| at|rom) ){CAPITALISED}(?: {CAPITALISED}){{0,2}}"), ("Where", "In what place", "Where"), 1.0),
    Kind(re.compile(rf"{CAPITALISED}(?: (?:(?:of|the|de|von|and) )?{CAPITALISED}){{1,3}}"), ("Who", "What", "Which", "Who"), 1.0),
    Kind(re.compile(rf"(?<=[a-z,] ){CAPITALISED}"), ("Who", "What", "Which"), 0.6),
    Kind(re.compile(r"(?<=[\"“])[^\"”]{3,50}(?=[\"”])"), ("What", "Which"), 1.0),
    Kind(re.compile(rf"(?:(?<=\ba )|(?<=\ban )|(?<=\bthe ))(?:[a-z-]{{3,}} ){{0,2}}[a-z-]{{3,}}{STOPS}"),
         ("What", "What", "Which"), 0.6),
)  # fmt: skip
UNREADABLE = re.compile(r"[_\\{}<>=|]")
AUXILIARIES = frozenset("is are was were has had have can could will would may must should does did".split())
LEADING = frozenset("in on at by for from to of the a an during until since about with".split())
FILLERS = frozenset("the a an also then however therefore and but very this that it".split())


def cloze_block(text: str, wanted: int, rng: random.Random) -> Block:
    """`text` with up to `wanted` questions about its own sentences."""
    questions: list[Question] = []
    offset = 0
    sentences: list[tuple[int, str]] = []
    for sentence in SENTENCE_END.split(text):
        start = text.index(sentence, offset)
        offset = start + len(sentence)
        if 40 <= len(sentence) <= 320 and not UNREADABLE.search(sentence):
            sentences.append((start, sentence))
    rng.shuffle(sentences)
    for start, sentence in sentences[:wanted]:
        question = cloze(sentence, rng)
        if question is not None:
            questions.append(question.moved(start))
    return Block(text, tuple(questions))


def cloze(sentence: str, rng: random.Random) -> Question | None:
    """A question about one piece of the sentence, or None where nothing in it can be asked for."""
    found = [(kind, match) for kind in KINDS for match in kind.pattern.finditer(sentence)]
    if not found:
        return None
    kind, match = rng.choices(found, [kind.weight for kind, _ in found])[0]
    before = words_of(sentence[: match.start()])
    after = words_of(sentence[match.end() :])
    asked = rearranged(before, after, rng.choice(kind.words), rng)
    # Fewer words than this fit every other sentence of a document.
    if sum(len(word) > 3 for word in asked.split()[1:]) < 3:
        return None
    return Question(capital(asked) + rng.choice(["?", "?", "?", ""]), match.group(), match.start())


def words_of(text: str) -> list[str]:
    return [word.strip(',;:()"“”.') for word in text.split() if word.strip(',;:()"“”.')]


def rearranged(before: list[str], after: list[str], asking: str, rng: random.Random) -> str:
    """The words of a cloze as a question: noisy, shortened to those nearest to the gap, auxiliary verb moved forward."""
    most = rng.randint(5, 12)
    if before and before[-1].lower() in LEADING and rng.random() < 0.8:
        before = before[:-1]
    behind = after[: rng.randint(0, most // 2) if before else most]
    ahead = before[-max(1, most - len(behind)) :] if before else []
    noise = rng.choice([0.0, 0.0, 0.0, 0.1, 0.25])
    ahead, behind = thinned(ahead, noise, rng), thinned(behind, noise, rng)
    draw = rng.random()
    if draw < 0.12:
        return " ".join([*ahead, asking.lower(), *behind])
    if draw < 0.2:
        keys = [word for word in ahead + behind if len(word) > 3]
        rng.shuffle(keys)
        return " ".join([asking, *keys[:5]])
    place = next((place for place, word in enumerate(ahead) if word in AUXILIARIES), None)
    if place is not None:
        ahead = [ahead[place], *ahead[:place], *ahead[place + 1 :]]
    elif ahead and rng.random() < 0.5:
        ahead = ["did", *ahead]
    if len(ahead) > 1 and ahead[1] in ("The", "A", "An", "In", "It", "This", "These"):
        ahead[1] = ahead[1].lower()
    # "How many" wants its noun at once: "How many rooms does the house have".
    if asking == "How many" and behind:
        return " ".join([asking, behind[0], *ahead, *behind[1:]])
    return " ".join([asking, *ahead, *behind])


def thinned(words: list[str], noise: float, rng: random.Random) -> list[str]:
    return [word for word in words if rng.random() >= (2 * noise if word.lower() in FILLERS else noise)]
