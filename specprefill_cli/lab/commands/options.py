"""Options that several of the lab's commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.cli.options import OUTPUT
from specprefill_cli.files import check_can_write

Lengths = Annotated[str, typer.Option(help="Prompt lengths in tokens, comma-separated.")]
Repeat = Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")]
Distractors = Annotated[int, typer.Option(min=0, help="Contexts of other questions to put around each question's own.")]
SampleSeed = Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")]


def plot_option(figures: str) -> Any:
    """The option `--plot` of a command that draws these figures."""
    return typer.Option(help=f"Also draw {figures} to this file (SVG).", rich_help_panel=OUTPUT, show_default=False)


def check_plot(plot: Path | None) -> None:
    """Raises SpecprefillError, before anything is measured, for a plot that could not be drawn or written."""
    if plot is None:
        return
    from specprefill_cli.lab.plots import require_matplotlib

    require_matplotlib("--plot")
    check_can_write(plot, "--plot")
