"""Measures how often `not found` is right, at a threshold on its margin over any other answer."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item, read_rows
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import percentile_interval, resample
from specprefill_cli.lab.tables import Columns, Row, figure
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.record import NOT_FOUND
from specprefill_cli.settings import Settings

FALSE_ALARMS = 0.05


COLUMNS: Columns = {
    "measure": lambda _figures: "dev, own and other paragraph",
    "n": lambda figures: f"{figures['n']} + {figures['n']}",
    "threshold": figure("threshold", "+.2f"),
    "not found right, % [95 %]": figure("right", ".1f", interval=True),
    "false alarms, %": figure("false_alarms", ".1f"),
    "right, greedy, %": figure("greedy_right", ".1f"),
    "false alarms, greedy, %": figure("greedy_false_alarms", ".1f"),
}


def question_pairs(path: Path, count: int, seed: int) -> list[tuple[Item, Item]]:
    """Draw up to `count` questions, each on its own paragraph and on another paragraph of the same article.

    The other paragraph contains no reference answer. Questions without such a paragraph are left out.

    Raises SpecprefillError for rows without context and title.
    """
    rows = read_rows(path)
    articles: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if not {"context", "title"} <= set(row):
            raise SpecprefillError(f"{path}: rows need context and title (the article); leave out --unanswerable")
        articles[row["title"]].add(row["context"])
    generator = random.Random(seed)
    pairs: list[tuple[Item, Item]] = []
    for row in generator.sample(rows, len(rows)):
        if len(pairs) == count:
            break
        others = sorted(text for text in articles[row["title"]] if not contains_answer(text, row["answers"]))
        if row["answers"] and others:
            pairs.append(
                (question_on(row, row["context"], row["answers"]), question_on(row, generator.choice(others), ()))
            )
    return pairs


def question_on(row: Mapping, text: str, answers: Sequence[str]) -> Item:
    """A row's question on a text, with its answers there."""
    collection = Collection((one_page_document("context", text),))
    return Item(str(row["id"]), row["question"], tuple(answers), collection, (0, len(text)))


def not_found_margin(session: Session, item: Item, settings: Settings) -> float:
    """The margin log p(`not found`) - log p(best other answer) of the first tokens, in nats.

    It needs no decoding, and separates answerable from unanswerable questions as well as probabilities of whole answers.
    """
    # An answer begins with a blank after a plain template, and on a new line after a chat template.
    blank = " " if session.template.text is not None else ""
    first_token = encode_text(session.pair.target.tokenizer, blank + NOT_FOUND)[0][0]
    logits = session.prefill(session.prepare(item.collection, item.question, settings)).logits.clone()
    not_found = float(logits[first_token])
    logits[first_token] = float("-inf")
    return not_found - float(logits.max())


def measure_not_found(session: Session, pairs: Sequence[tuple[Item, Item]], settings: Settings) -> Row:
    """Measure questions on each of their paragraphs in the settings' mode."""
    answerable, unanswerable = (
        [not_found_margin(session, item, settings) for item in items] for items in zip(*pairs, strict=True)
    )
    return not_found_figures(answerable, unanswerable)


def not_found_figures(answerable: Sequence[float], unanswerable: Sequence[float]) -> Row:
    """Percentages of n answerable and n unanswerable questions with the answer `not found`, from their margins.

    Equal indices belong to the same question.

    right: of the unanswerable questions at the threshold, with its 95 % interval; false_alarms: of the answerable ones
    threshold: on the margin, in nats: the lowest of the answerable questions' margins with false alarms of at most
        `FALSE_ALARMS`. In the interval each draw has a threshold of its own, so that its uncertainty counts too
    greedy_right, greedy_false_alarms: the same at a threshold of 0, which is greedy decoding
    """
    negatives, positives = np.array(answerable), np.array(unanswerable)
    draws = resample(len(negatives))
    low, high = percentile_interval((positives[draws] > lowest_threshold(negatives[draws])[:, None]).mean(1))
    threshold = float(lowest_threshold(negatives))
    return {
        "n": len(answerable),
        "threshold": threshold,
        "right": percent_above(positives, threshold),
        "right_low": 100 * low,
        "right_high": 100 * high,
        "false_alarms": percent_above(negatives, threshold),
        "greedy_right": percent_above(positives, 0.0),
        "greedy_false_alarms": percent_above(negatives, 0.0),
    }


def lowest_threshold(margins: np.ndarray) -> np.ndarray:
    """The lowest of margins [..., n] that at most a share of `FALSE_ALARMS` of them lie above."""
    return np.quantile(margins, 1 - FALSE_ALARMS, axis=-1, method="inverted_cdf")


def percent_above(values: np.ndarray, threshold: float) -> float:
    """The percentage of values above a threshold."""
    return 100 * float((values > threshold).mean())
