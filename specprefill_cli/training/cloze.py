"""Makes questions from ordinary text. Each asks for a date, number, name or noun phrase of a sentence.

The method is that of Lewis et al. (arXiv 1906.04980). A question is a noisy, rearranged cloze with a question word that
fits the missing piece. It teaches reading on any text, without written questions.
"""

import random
import re
from typing import NamedTuple

from specprefill_cli.training.synthesis import MONTHS, SENTENCE_END, Block, Question, capital

MONTH = f"(?:{'|'.join(MONTHS)})"
NUMBER_WORD = "(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred)"
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = "[a-zA-Z]+s|km|kg|m|mm|cm|MB|GB|bytes"
ARTICLE = r"(?:(?<=\ba )|(?<=\ban )|(?<=\bthe ))"
NAME = r"[A-Z][\w'\u2019-]+"
NAMES = rf"{NAME}(?: {NAME}){{0,2}}"
PHRASE_END = r"(?=[,.;:)]| (?:of|in|on|for|to|and|or|that|which|who|by|with|from|at|is|was|are|were|has|had|can|as)\b)"


class AnswerKind(NamedTuple):
    """A kind of answer. pattern: finds it in text; weight: of the random choice; question_words: ask for it."""

    pattern: str
    weight: float
    question_words: tuple[str, ...]


ANSWER_KINDS = (
    AnswerKind(
        rf"\b(?:\d{{1,2}} {MONTH}(?: \d{{4}})?|{MONTH} \d{{1,2}}(?:, \d{{4}})?|{MONTH} \d{{4}})\b",
        2.0,
        ("When", "When", "On what date", "What date"),
    ),
    AnswerKind(r"\b(?:1[4-9]\d\d|20[0-2]\d)\b", 1.5, ("When", "When", "In what year", "What year")),
    AnswerKind(r"[$£€]\d[\d,.]*\d(?: (?:million|billion|trillion))?", 2.0, ("How much", "What amount")),
    AnswerKind(r"\b\d[\d.,]*(?:%| per ?cent\b)", 2.0, ("What percentage", "How much", "What share")),
    AnswerKind(r"\b\d{1,2}[:.]\d\d(?: ?[ap]\.?m\.?)?|\b\d{1,2} ?[ap]\.m\.", 2.0, ("When", "At what time")),
    AnswerKind(rf"\b(?:{NUMBER}|{NUMBER_WORD})(?= [a-z])", 1.5, ("How many", "How many", "How much")),
    AnswerKind(rf"\b{NUMBER} (?:{UNIT})\b", 1.5, ("How long", "How much", "What", "How large")),
    AnswerKind(rf"(?<=by ){NAMES}", 1.5, ("Who", "By whom")),
    AnswerKind(rf"(?<=(?: in| at|rom) ){NAMES}", 1.0, ("Where", "In what place", "Where")),
    AnswerKind(rf"{NAME}(?: (?:(?:of|the|de|von|and) )?{NAME}){{1,3}}", 1.0, ("Who", "What", "Which", "Who")),
    AnswerKind(rf"(?<=[a-z,] ){NAME}", 0.6, ("Who", "What", "Which")),
    AnswerKind(r"(?<=[\"“])[^\"”]{3,50}(?=[\"”])", 1.0, ("What", "Which")),
    AnswerKind(rf"{ARTICLE}(?:[a-z-]{{3,}} ){{0,2}}[a-z-]{{3,}}{PHRASE_END}", 0.6, ("What", "What", "Which")),
)
UNREADABLE = re.compile(r"[_\\{}<>=|]")
AUXILIARIES = frozenset("is are was were has had have can could will would may must should does did".split())
LEADING = frozenset("in on at by for from to of the a an during until since about with".split())
FILLERS = frozenset("the a an also then however therefore and but very this that it".split())


def cloze_block(text: str, count: int, rng: random.Random) -> Block:
    """Make up to `count` questions about sentences of a text."""
    questions: list[Question] = []
    offset = 0
    sentences: list[tuple[int, str]] = []
    for sentence in SENTENCE_END.split(text):
        start = text.index(sentence, offset)
        offset = start + len(sentence)
        if 40 <= len(sentence) <= 320 and not UNREADABLE.search(sentence):
            sentences.append((start, sentence))
    rng.shuffle(sentences)
    for start, sentence in sentences[:count]:
        if (question := cloze(sentence, rng)) is not None:
            questions.append(question.shift(start))
    return Block(text, tuple(questions))


def cloze(sentence: str, rng: random.Random) -> Question | None:
    """Make a question about a piece of a sentence; None where no piece matches."""
    pieces = [(kind, match) for kind in ANSWER_KINDS for match in re.finditer(kind.pattern, sentence)]
    if not pieces:
        return None
    answer_kind, match = rng.choices(pieces, [answer_kind.weight for answer_kind, _ in pieces])[0]
    before = words_of(sentence[: match.start()])
    after = words_of(sentence[match.end() :])
    text = rearrange_cloze(before, after, rng.choice(answer_kind.question_words), rng)
    # A question with fewer words would fit too many sentences of a document.
    if sum(len(word) > 3 for word in text.split()[1:]) < 3:
        return None
    return Question(capital(text) + rng.choice(["?", "?", "?", ""]), match.group(), match.start())


def words_of(text: str) -> list[str]:
    stripped = (word.strip(',;:()"“”.') for word in text.split())
    return [word for word in stripped if word]


def rearrange_cloze(before: list[str], after: list[str], question_word: str, rng: random.Random) -> str:
    """Turn a cloze into a noisy question of the words nearest to the gap, with the auxiliary verb in front."""
    max_words = rng.randint(5, 12)
    if before and before[-1].lower() in LEADING and rng.random() < 0.8:
        before = before[:-1]
    after = after[: rng.randint(0, max_words // 2) if before else max_words]
    before = before[-max(1, max_words - len(after)) :] if before else []
    noise = rng.choice([0.0, 0.0, 0.0, 0.1, 0.25])
    before, after = thin_words(before, noise, rng), thin_words(after, noise, rng)
    draw = rng.random()
    if draw < 0.12:
        return " ".join([*before, question_word.lower(), *after])
    if draw < 0.2:
        keywords = [word for word in before + after if len(word) > 3]
        rng.shuffle(keywords)
        return " ".join([question_word, *keywords[:5]])
    before = move_auxiliary_first(before, rng)
    # "How many" is followed by its noun: "How many rooms does the house have".
    if question_word == "How many" and after:
        return " ".join([question_word, after[0], *before, *after[1:]])
    return " ".join([question_word, *before, *after])


def move_auxiliary_first(words: list[str], rng: random.Random) -> list[str]:
    index = next((index for index, word in enumerate(words) if word in AUXILIARIES), None)
    if index is not None:
        words = [words[index], *words[:index], *words[index + 1 :]]
    elif words and rng.random() < 0.5:
        words = ["did", *words]
    if len(words) > 1 and words[1] in ("The", "A", "An", "In", "It", "This", "These"):
        words[1] = words[1].lower()
    return words


def thin_words(words: list[str], noise: float, rng: random.Random) -> list[str]:
    """Drop words at random: fillers with twice the probability `noise`."""
    return [word for word in words if rng.random() >= (2 * noise if word.lower() in FILLERS else noise)]
