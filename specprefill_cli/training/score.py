"""The pair's report: every quality figure of the model card, measured in one run and kept as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.lab.evaluation.datasets import Item, read_items
from specprefill_cli.lab.evaluation.runner import Configuration, Row, rows, run
from specprefill_cli.reporting.table import keep_text
from specprefill_cli.resources import packaged_folder
from specprefill_cli.settings import Settings
from specprefill_cli.training.corpus import dev_grams, stream_text
from specprefill_cli.training.needles import needle_rows, write_rows

NEEDLE_TOKENS = (7_900, 15_900)
NEEDLE_SEED = 977
SHORT_ANSWER = 32


@dataclass(frozen=True)
class Measurement:
    """One line of the report: what was asked, and the figures of one configuration."""

    measure: str
    row: Row


@dataclass(frozen=True)
class QuestionSet:
    """A question set, and the configurations it is asked in."""

    measure: str
    items: Sequence[Item]
    configurations: Sequence[Configuration]


def question_sets(data: Path, tokenizer: Tokenizer, work: Path, limit: int, needles: int) -> Iterator[QuestionSet]:
    """The sets of the report; `limit` questions of the dev set, `needles` of each length (0: none)."""
    full, select = Configuration("full"), Configuration("select", 0.2, "auto")
    samples = packaged_folder("sample_docs") / "questions.jsonl"
    yield QuestionSet("sample questions", read_items(samples, None, 0, 0), [full, select])
    dev = data / "dev" / "squad11_dev.jsonl.xz"
    yield QuestionSet("dev, one paragraph", read_items(dev, limit, 0, 0), [full])
    scorers = ("auto", "question", "lexical", "random")
    chosen = [Configuration("select", keep, scorer) for keep in (0.1, 0.2) for scorer in scorers]
    yield QuestionSet("dev, 20 paragraphs", read_items(dev, limit, 19, 0), [full, *chosen])
    if not needles:
        return
    prose = list(stream_text(data, 1_000_000, dev_grams(data)))
    for tokens in NEEDLE_TOKENS:
        path = work / f"needles-{tokens}.jsonl"
        write_rows(needle_rows(prose, tokenizer, tokens, NEEDLE_SEED), path)
        yield QuestionSet(
            f"needles in {tokens:,} tokens",
            read_items(path, needles, 0, 0),
            [full, Configuration("select", 0.1, "auto")],
        )


def score_pair(
    data: Path, pair: Path, tokenizer: Tokenizer, out: Path, limit: int, needles: int, step: Callable[[str], None]
) -> list[Measurement]:
    """Measure an exported pair (folders `target` and `draft`, and `heads.json` where it was calibrated).

    Writes `out/scores.json` after every set, so that nothing measured is lost, and `out/scores.md` at the end.
    """
    base = Settings(max_new_tokens=SHORT_ANSWER)
    session = open_pair(pair, base)
    found: list[Measurement] = []
    for questions in question_sets(data, tokenizer, out, limit, needles):
        wanted = [one.named(session) for one in questions.configurations]
        wanted = list(dict.fromkeys(wanted))

        def told(number: int, *_: object, questions: QuestionSet = questions) -> None:
            step(f"{questions.measure}: {number + 1} of {len(questions.items)}")

        results = run(session, questions.items, wanted, base, told).complete()
        found += [Measurement(questions.measure, row) for row in rows(results)]
        (out / "scores.json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
    (out / "scores.md").write_text(markdown(found), encoding="utf-8")
    return found


def open_pair(pair: Path, base: Settings) -> Session:
    """A session with an exported pair and the bundled prompt."""
    from dataclasses import replace

    from specprefill_cli.prefill.scoring_heads import load_heads

    settings = replace(base, draft=str(pair / "draft"), target=str(pair / "target"), prompt="tiny", offline=True)
    session = open_session(settings, draft=True, calibrated=False)
    session.pair.scoring_heads = load_heads(pair, session.pair.draft)
    return session


def markdown(found: Sequence[Measurement]) -> str:
    """The measurements as a table for the model card."""
    lines = [
        "| measure | mode | keep | scorer | n | right | EM | F1 [95 %] | F1 - full [95 %] | TTFT, x full |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        row = one.row
        delta = (
            "" if row.f1_delta is None else f"{row.f1_delta:+.1f} [{row.f1_delta_low:+.1f}, {row.f1_delta_high:+.1f}]"
        )
        ratio = "" if row.ttft_ratio is None else f"{row.ttft_ratio:.2f}"
        lines.append(
            f"| {one.measure} | {row.mode} | {keep_text(row.mode, row.keep)} | {row.scorer or ''} "
            f"| {row.n} | {row.right} | {row.em:.1f} "
            f"| {row.f1:.1f} [{row.f1_low:.1f}, {row.f1_high:.1f}] | {delta} | {ratio} |"
        )
    return "\n".join(lines) + "\n"
