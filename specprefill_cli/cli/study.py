"""`specprefill study`: where draft KV breaks, in numbers."""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes


def study(
    questions: Annotated[Path, typer.Argument(help="JSONL (or .xz) of questions, as for `evaluate`.")],
    out: Annotated[Path, typer.Option(help="Folder for study.json.")],
    limit: Annotated[int, typer.Option(min=2, help="Questions to draw at random.")] = 50,
    distractors: Annotated[
        int, typer.Option(min=0, help="Other contexts of the file around each question's own.")
    ] = 19,
    sample_seed: Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")] = 0,
    exact_layers: options.ExactLayers = None,
    scorer: options.Scorer = None,
    look_ahead: options.LookAhead = None,
    prefill_chunk: options.PrefillChunk = None,
    chunk_size: options.ChunkSize = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    dtype: options.Dtype = None,
    offline: options.Offline = None,
    quiet: options.Quiet = False,
) -> None:
    """Map where the draft's KV fails in the target: true errors by layer and depth, what checkpoints foretell, what mends.

    Example:

      specprefill study squad.jsonl.xz --out study --limit 100
    """
    settings = replace(options.settings_from(locals()), mode="draft-kv")
    from specprefill_cli.evaluation.datasets import read_items
    from specprefill_cli.evaluation.study import study as run_study
    from specprefill_cli.evaluation.study import summary
    from specprefill_cli.models.runs import refuse_ranks
    from specprefill_cli.session import open_session

    refuse_ranks(settings.tensor_parallel, "study")
    notes = Notes(quiet)
    items = read_items(questions, limit, distractors, sample_seed)
    with notes.progress("loading the models"):
        session = open_session(settings, draft=True)
    with notes.progress("studying") as update:
        found = summary(
            run_study(session, items, settings, lambda number: update(f"question {number} of {len(items)}"))
        )
    out.mkdir(parents=True, exist_ok=True)
    record = {"schema": 1, "pair": {"draft": session.pair.draft.name, "target": session.pair.target.name}, **found}
    path = out / "study.json"
    path.write_text(json_format.dumps(record, indent=1) + "\n", encoding="utf-8")
    notes.show(f"wrote {path}")
    for name, figures in found["variants"].items():
        print(f"{name}: first token kept {figures['same_first_token']:.0%}, median KL {figures['kl_median']:.3f}")
