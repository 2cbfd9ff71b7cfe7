"""The quality figures of the model card, measured in a single run and written as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from specprefill_cli.lab.evaluation.datasets import Item, read_items
from specprefill_cli.lab.evaluation.runner import Configuration, Row, rows, run
from specprefill_cli.lab.session import LONGEST_ANSWER
from specprefill_cli.lab.tables import EVALUATION, Columns, markdown
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings
from specprefill_cli.training.corpus import dev_grams, stream_text
from specprefill_cli.training.needles import needle_rows
from specprefill_cli.training.selection import open_pair
from specprefill_cli.training.unanswerable import COLUMNS as NOT_FOUND_COLUMNS
from specprefill_cli.training.unanswerable import measure_not_found, question_pairs

NEEDLE_TOKENS = (7_900, 15_900)
NEEDLE_SEED = 977
QuestionSet = tuple[str, Sequence[Item], Sequence[Configuration]]


@dataclass(frozen=True)
class Measurement:
    """The figures of a configuration on a question set."""

    measure: str
    row: Row


def row_column(name: str) -> tuple[str, Callable[[Measurement], str]]:
    """A column of `evaluate` for measurements."""
    return name, lambda measurement: EVALUATION[name](measurement.row)


# The columns of the model card.
COLUMNS: Columns = {
    "measure": lambda measurement: measurement.measure,
    **dict(map(row_column, (name for name in EVALUATION if name not in ("kept", "TTFT")))),
}


def dev_set(data: Path) -> Path:
    """The file of dev questions."""
    return data / "dev" / "squad11_dev.jsonl.xz"


def question_sets(data: Path, tokenizer: Tokenizer, work: Path, limit: int, needles: int) -> Iterator[QuestionSet]:
    """Name, questions and configurations of each set; `limit` dev questions and `needles` of each length (0: none)."""
    full, select = Configuration("full"), Configuration("select", 0.2, "auto")
    samples = packaged_folder("sample_docs") / "questions.jsonl"
    yield ("sample questions", read_items(samples, None, 0, 0), [full, select])
    if limit:
        dev = dev_set(data)
        yield ("dev, one paragraph", read_items(dev, limit, 0, 0), [full])
        scorers = ("auto", "question", "lexical", "random")
        chosen = [Configuration("select", keep, scorer) for keep in (0.1, 0.2) for scorer in scorers]
        yield ("dev, 20 paragraphs", read_items(dev, limit, 19, 0), [full, *chosen])
    if not needles:
        return
    prose = list(stream_text(data, 1_000_000, dev_grams(data)))
    for tokens in NEEDLE_TOKENS:
        path = work / f"needles-{tokens}.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) for row in needle_rows(prose, tokenizer, tokens, NEEDLE_SEED)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        items = read_items(path, needles, 0, 0)
        yield (f"needles in {tokens:,} tokens", items, [full, Configuration("select", 0.1, "auto")])


def score_pair(
    data: Path,
    pair: Path,
    tokenizer: Tokenizer,
    out: Path,
    limit: int,
    needles: int,
    unanswerable: int,
    progress: Callable[[str], None],
) -> list[Measurement]:
    """Measure an exported pair (folders `target` and `draft`, and `heads.json` if it was calibrated).

    Writes `out/scores.json` after every set, so that an interrupted run keeps its figures, and `out/scores.md`; with
    questions that are `unanswerable`, also `out/not_found.json`.
    """
    base = Settings(max_new_tokens=LONGEST_ANSWER)
    session = open_pair(pair, base)
    measurements: list[Measurement] = []
    for measure, items, configurations in question_sets(data, tokenizer, out, limit, needles):
        named = list(dict.fromkeys(configuration.named(session) for configuration in configurations))

        def step(number: int, *_: object, text: str = f"{measure}: {{}} of {len(items)}") -> None:
            progress(text.format(number + 1))

        results = run(session, items, named, base, step).complete()
        measurements += [Measurement(measure, row) for row in rows(results)]
        record = [asdict(measurement) for measurement in measurements]
        (out / "scores.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    tables = [markdown(measurements, COLUMNS)]
    if unanswerable:
        pairs = question_pairs(dev_set(data), unanswerable, 0)
        figures = measure_not_found(
            session, pairs, base.varied(mode="full"), lambda asked: progress(f"not found: {asked} of {len(pairs)}")
        )
        (out / "not_found.json").write_text(json.dumps(asdict(figures), indent=1) + "\n", encoding="utf-8")
        tables.append(markdown([figures], NOT_FOUND_COLUMNS))
    (out / "scores.md").write_text("\n".join(tables), encoding="utf-8")
    return measurements
