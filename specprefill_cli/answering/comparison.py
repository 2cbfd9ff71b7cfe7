"""The same pair answering one question in several modes, each on the same terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.cells import Cell, stream_cells
from specprefill_cli.answering.dry_run import DryRun, dry_run
from specprefill_cli.answering.metrics import f1
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.collection import Collection
from specprefill_cli.prefill.prefix_cache import SharedWork
from specprefill_cli.settings import Settings

BASELINE = "full"


@dataclass(frozen=True)
class Compared:
    """One mode's answer, as the page wants it too, and how it differs from the one in `full` (None where it did not run).

    asked: the mode that was asked for; the answer names the one that `auto` took
    speedup: TTFT of `full` over this one's; first_token_kl: KL(full || mode) of the first token's distributions, nats
    agreement: F1 of the words of both answers, 1 where they are the same
    """

    asked: str
    answer: Answer
    cells: list[Cell]
    speedup: float | None = None
    first_token_kl: float | None = None
    agreement: float | None = None


class Comparison:
    """A session and the documents that it is asked about, in one mode after the other.

    Every mode keeps its own work from question to question, so that none finds done what another did for the same
    question; cold: nothing is kept.
    """

    def __init__(self, session: Session, collection: Collection, cold: bool = False) -> None:
        self.session = session
        self.collection = collection
        self.cold = cold
        self.works: dict[str, SharedWork] = {}

    def ask(
        self,
        question: str,
        settings: Settings,
        modes: Sequence[str],
        step: Callable[[str], None] = lambda _mode: None,
    ) -> list[Compared]:
        """The answers in each mode, in the order of `modes`; `step` is told of each mode before it begins.

        Raises what `Session.ask` raises, and KeyboardInterrupt when an answer was interrupted.
        """
        found: list[tuple[Compared, Tensor]] = []
        for mode in modes:
            step(mode)
            found.append(self.answer(mode, question, replace(settings, mode=mode)))
        baseline = next((one for one in found if one[0].asked == BASELINE), None)
        return [one if baseline is None else against(baseline, one, logits) for one, logits in found]

    def answer(self, mode: str, question: str, settings: Settings) -> tuple[Compared, Tensor]:
        """The answer in one mode, and its first token's logits [V]; its caches are let go."""
        self.session.shared = None if self.cold else self.works.setdefault(mode, SharedWork())
        stream = self.session.ask(self.collection, question, settings)
        return Compared(mode, stream.finished(), stream_cells(stream)), stream.prefilled.logits

    def plan(self, question: str, settings: Settings) -> DryRun:
        """A dry run, which starts cold: its estimates rest on the draft's time for the whole prompt."""
        return dry_run(replace(self.session, shared=None), self.collection, question, settings)


def against(baseline: tuple[Compared, Tensor], one: Compared, logits: Tensor) -> Compared:
    """The answer with its differences from the baseline's."""
    full, full_logits = baseline
    return replace(
        one,
        speedup=full.answer.ttft_seconds / one.answer.ttft_seconds,
        first_token_kl=divergence(full_logits, logits),
        agreement=f1(one.answer.answer, [full.answer.answer]),
    )


def divergence(reference: Tensor, logits: Tensor) -> float:
    """KL(reference || other) in nats between the distributions of two logits [V]; what is impossible in both counts 0."""
    expected, other = reference.double().log_softmax(-1).cpu(), logits.double().log_softmax(-1).cpu()
    terms = torch.where(expected == -math.inf, 0.0, expected.exp() * (expected - other))
    return float(terms.sum().clamp(min=0.0))
