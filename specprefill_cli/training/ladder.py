"""Trials of the target's recipe under one protocol: the same clock, start, questions and draft for every rung."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.lab.evaluation.datasets import Item, read_items
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.runner import Configuration, run
from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.session import LONGEST_ANSWER
from specprefill_cli.lab.tables import Columns, number
from specprefill_cli.settings import Settings
from specprefill_cli.training.batches import BatchStream
from specprefill_cli.training.questions import lead_question
from specprefill_cli.training.recipe import Recipe, TrainSettings
from specprefill_cli.training.rungs import BASELINE, RUNGS, Rung
from specprefill_cli.training.score import dev_set
from specprefill_cli.training.selection import open_pair
from specprefill_cli.training.shapes import PAIR_SHAPES
from specprefill_cli.training.sources import RowSource
from specprefill_cli.training.train import Trainer, train

DISTRACTORS = 19
# Of the questions on one paragraph, the part that is also asked among others.
AMONG_OTHERS = 0.4
ALONE, AMONG = "one paragraph", "20 paragraphs"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What all rungs of a comparison share.

    start: fingerprint of the pair whose weights every rung begins with, and whose draft chooses
    questions: of the dev set, each on its own paragraph; characters: of each text file
    """

    shape: str
    start: str
    minutes: float
    questions: int
    tokens_per_batch: int
    rate: float
    characters: int
    workers: int
    device: str
    seed: int

    def folder(self, rung: Rung) -> str:
        """The name of a folder for a rung's run under this protocol."""
        return f"{rung.name}-{hashlib.sha256(json.dumps([asdict(self), rung.changes]).encode()).hexdigest()[:12]}"


def fingerprint(pair: Path) -> str:
    """What tells an exported pair's weights from others."""
    digest = hashlib.sha256()
    for name in ("target", "draft"):
        digest.update((pair / name / "model.safetensors").read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One rung's outcome; scores: F1 in percent of each question, by measure; tokens: seen in training."""

    rung: str
    changes: Mapping[str, Mapping]
    protocol: Protocol
    steps: int
    tokens: int
    scores: Mapping[str, Sequence[float]]


def climb(
    rung: Rung, protocol: Protocol, source: RowSource, settings: TrainSettings, start: Path, folder: Path
) -> Trial:
    """Train the start's target by the rung's recipe, in a folder of its own, and score it; the draft stays as it is."""
    recipe = Recipe(**rung.recipe)
    rows = replace(source, recipe=recipe, pair=start)
    trainer = train(
        PAIR_SHAPES[protocol.shape],
        replace(settings, **rung.training),
        BatchStream(rows, protocol.tokens_per_batch, protocol.seed),
        folder / protocol.folder(rung),
        start,
    )
    sets = question_sets(source.data, protocol.questions)
    if recipe.question_first:
        sets = {measure: ([with_question_first(item) for item in items], how) for measure, (items, how) in sets.items()}
    return Trial(
        rung=rung.name,
        changes=rung.changes,
        protocol=protocol,
        steps=trainer.steps,
        tokens=trainer.tokens,
        scores=scores(trained_session(start, trainer), sets),
    )


def question_sets(data: Path, questions: int) -> dict[str, tuple[list[Item], Configuration]]:
    """Dev questions on one paragraph in `full`, and fewer among other paragraphs with the draft's choice of a tenth."""
    among = max(1, round(AMONG_OTHERS * questions))
    return {
        ALONE: (read_items(dev_set(data), questions, 0, 0), Configuration("full")),
        AMONG: (read_items(dev_set(data), among, DISTRACTORS, 0), Configuration("select", 0.1, "auto")),
    }


def with_question_first(item: Item) -> Item:
    """The question on a document that begins with it."""
    text = lead_question(item.question) + item.collection.text
    return replace(item, collection=Collection((one_page_document("context", text, "text/plain"),)))


def trained_session(start: Path, trainer: Trainer) -> Session:
    """The pair that the run began with, with the run's target in the precision in which it would ship."""
    session = open_pair(start, Settings())
    weights = {name: weight.half().float() for name, weight in trainer.weights("target").items()}
    # The head is tied to the embedding.
    session.pair.loaded_target.model.load_state_dict(weights, strict=False)
    return session


def scores(session: Session, sets: Mapping[str, tuple[Sequence[Item], Configuration]]) -> dict[str, list[float]]:
    """F1 in percent of every question, by measure."""
    base, by_measure = Settings(max_new_tokens=LONGEST_ANSWER), {}
    for measure, (items, configuration) in sets.items():
        (answers,) = run(session, items, [configuration.named(session)], base, lambda *_: None).complete().values()
        by_measure[measure] = [100 * f1(answer.answer, item.answers) for item, answer in answers]
    return by_measure


def figures(trial: Trial, baseline: Trial) -> dict[str, dict[str, Sequence[float]]]:
    """By measure, mean F1 and its paired difference to the baseline, each with its 95 % bootstrap interval."""
    return {
        measure: {
            "f1": mean_interval(values),
            "f1_delta": mean_interval(
                [ours - theirs for ours, theirs in zip(values, baseline.scores[measure], strict=True)]
            ),
        }
        for measure, values in trial.scores.items()
    }


def run_ladder(
    rungs: Sequence[Rung], protocol: Protocol, log: Path, climb_rung: Callable[[Rung], Trial]
) -> list[tuple[Trial, dict]]:
    """The trials of the rungs with their figures, the baseline first; each new one is appended to the log as a line.

    A rung that the log has with the same changes under the same protocol is not run again.
    """
    logged = [trial for trial in read_trials(log) if trial.protocol == protocol]
    known = {
        rung.name: trial
        for rung in rungs
        for trial in logged
        if (trial.rung, trial.changes) == (rung.name, rung.changes)
    }
    outcomes: list[tuple[Trial, dict]] = []
    for rung in sorted(rungs, key=lambda rung: rung.name != BASELINE):
        trial = known.get(rung.name) or climb_rung(rung)
        baseline = outcomes[0][0] if outcomes else trial
        outcomes.append((trial, figures(trial, baseline)))
        if rung.name not in known:
            with log.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(trial) | {"figures": outcomes[-1][1]}) + "\n")
    return outcomes


def read_trials(log: Path) -> list[Trial]:
    """The trials in a log, without those of an older version's protocol; none if there is no log yet."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    rows = [{key: value for key, value in json.loads(line).items() if key != "figures"} for line in lines]
    known = {field.name for field in fields(Protocol)}
    return [Trial(**{**row, "protocol": Protocol(**row["protocol"])}) for row in rows if set(row["protocol"]) == known]


def column(measure: str, key: str, form: str) -> Callable[[tuple[Trial, dict]], str]:
    """The text of a figure with its interval, from a trial and its figures."""

    def text(outcome: tuple[Trial, dict]) -> str:
        mean, *interval = outcome[1][measure][key]
        return number(mean, form, *interval)

    return text


COLUMNS: Columns = {
    "rung": lambda outcome: outcome[0].rung,
    "change": lambda outcome: RUNGS[outcome[0].rung].about,
    "tokens": lambda outcome: f"{outcome[0].tokens / 1e6:.1f} M",
    f"{ALONE}, F1 [95 %]": column(ALONE, "f1", ".1f"),
    f"{ALONE}, F1 - baseline [95 %]": column(ALONE, "f1_delta", "+.1f"),
    f"{AMONG}, F1 [95 %]": column(AMONG, "f1", ".1f"),
    f"{AMONG}, F1 - baseline [95 %]": column(AMONG, "f1_delta", "+.1f"),
}
