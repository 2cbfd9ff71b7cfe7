"""Options that several of the lab's commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Lengths = Annotated[str, typer.Option(help="Prompt lengths in tokens, comma-separated.")]
Repeat = Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")]
Distractors = Annotated[int, typer.Option(min=0, help="Other contexts of the file around each question's own.")]
SampleSeed = Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")]
