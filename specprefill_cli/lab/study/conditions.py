"""What the study compares at equal cost: modes, the draft alone, and the controls of draft KV."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from specprefill_cli.draft_kv.checkpoints import SlotKv
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.session import Control, short_answers
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.measurements import REFERENCE_BUDGET
from specprefill_cli.settings import OFF, Settings

FULL, DRAFT_ALONE, SELECT, DRAFT_KV, HYBRID = "full", "draft alone", "select", "draft-kv", "hybrid"
ZEROS_ACCEPTED, WRONG_ACCEPTED = "zeros accepted", "wrong document accepted"
REST_DROPPED, MAPPED, WRONG = "same tokens, rest dropped", "mapped only", "wrong document's KV"


def reference_settings(settings: Settings) -> Settings:
    """Draft KV with the reference's budget, for short answers."""
    return short_answers(settings).varied(mode=DRAFT_KV, recompute=REFERENCE_BUDGET, accept_risk=OFF)


def conditions(keeps: Mapping[str, float], wrong: SlotKv | None) -> list[Configuration]:
    """All conditions at the reference's budget, the baseline `full` first.

    keeps: keep ratio by mode; wrong: the mapped KV of another document, if there is one
    """
    foreign = []
    if wrong is not None:
        splice_wrong = partial(controls.splice_document, wrong)
        foreign = [
            draft_kv(WRONG_ACCEPTED, partial(controls.replace_accepted, splice_wrong)),
            draft_kv(WRONG, partial(controls.replace_all, splice_wrong)),
        ]
    return [
        Configuration(FULL),
        Configuration(FULL, name=DRAFT_ALONE, by_draft=True),
        Configuration(SELECT, keeps[SELECT]),
        draft_kv(DRAFT_KV),
        Configuration(HYBRID, keeps[HYBRID]),
        draft_kv(MAPPED, controls.map_only),
        draft_kv(REST_DROPPED, controls.drop_rest),
        draft_kv("random tokens recomputed", controls.recompute_random),
        # The same budget as the reference, so that only the accepted KV differs.
        draft_kv(ZEROS_ACCEPTED, partial(controls.replace_accepted, controls.zero_kv)),
        *foreign,
        draft_kv("zero KV", partial(controls.replace_all, controls.zero_kv)),
    ]


def draft_kv(name: str, control: Control | None = None) -> Configuration:
    """Draft KV, or a control in its place."""
    return Configuration(DRAFT_KV, name=name, control=control)
