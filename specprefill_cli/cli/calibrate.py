"""`specprefill calibrate`: what a pair must learn about itself once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes
from specprefill_cli.errors import UsageError


def calibrate(
    heads: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions with known answers: find the draft's scoring heads on it."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions to draw at random from --heads.")] = 400,
    distractors: Annotated[
        int, typer.Option(min=0, help="Other contexts of the file around each question's own.")
    ] = 19,
    sample_seed: Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; the pair's own without it.")] = None,
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
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the attention heads of a draft that point at answers (--heads). The scorer `heads` then uses only those.

    Example:

      specprefill calibrate --pair qwen2.5-7b --heads questions.jsonl
    """
    if heads is None:
        raise UsageError("calibrate: nothing to do; give --heads QUESTIONS.jsonl")
    settings = replace(options.settings_from(locals() | {"heads": None}), scorer="question")
    from specprefill_cli.evaluation.datasets import read_items
    from specprefill_cli.evaluation.head_calibration import calibrate_heads
    from specprefill_cli.models.calibration import calibration_folder
    from specprefill_cli.reporting.jsonl import line
    from specprefill_cli.session import open_session

    notes = Notes(quiet)
    items = [item for item in read_items(heads, limit, distractors, sample_seed) if item.answers]
    with notes.progress("loading the models"):
        session = open_session(settings, draft=True, calibrated=False)
    with notes.progress(f"watching the draft's heads on {len(items):,} questions") as update:
        found = calibrate_heads(
            session, items, settings, lambda number: update(f"watching the draft's heads: {number:,} of {len(items):,}")
        )
    path = found.save(out or calibration_folder(session.pair.pair))
    if json:
        from dataclasses import asdict

        print(line({"schema": 1, "file": str(path), **asdict(found)}), flush=True)
    else:
        notes.show(f"wrote {path}")
        named = ", ".join(f"layer {head.layer} head {head.head}" for head in found.heads)
        print(f"{len(found.heads)} heads: {named}", file=sys.stdout)
        for name, value in found.evidence.items():
            print(f"{name}: {value:g}")
        print(
            f"mass kept by --keep auto: {found.auto_mass:.3f}; default scorer: {'heads' if found.default else 'question'}"
        )
