"""What decoding costs on this machine, measured during warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable

from specprefill_cli.decoding.adaptive import Costs
from specprefill_cli.decoding.measures import Round
from specprefill_cli.decoding.proposers.draft import DraftProposer
from specprefill_cli.decoding.reader import Reader
from specprefill_cli.decoding.verification import NO_PROPOSAL, Proposal

TIMES = 4
# Numbers of proposed tokens whose verifying pass is timed.
WIDTHS = (1, 4, 16)


def measure_costs(
    costs: Costs, target: Reader, draft: Reader | None, token: int, clock: Callable[[], float] = time.perf_counter
) -> None:
    """Time passes over one token and over several, and one of the draft where there is one; `token` is any token.

    Slow first passes do not matter, since `costs` takes medians.
    """

    def timed(reader: Reader, tokens: int) -> float:
        start = clock()
        # Reading the result synchronises the device.
        reader.read([token] * tokens, tokens).argmax(-1).tolist()
        return clock() - start

    for _ in range(TIMES):
        costs.learn(Round(NO_PROPOSAL, 0, 0.0, timed(target, 1)))
    name = DraftProposer.name if draft is not None else ""
    for width in WIDTHS:
        for _ in range(TIMES):
            drafting = timed(draft, 1) if draft is not None else 0.0
            costs.learn(Round(Proposal(name, (token,) * width), 0, drafting * width, timed(target, 1 + width)))
