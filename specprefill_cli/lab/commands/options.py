"""Options that several of the lab's commands share, and their checks before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli.options import OUTPUT, ListOption, split_list
from specprefill_cli.distributed.launch import in_run
from specprefill_cli.errors import UsageError
from specprefill_cli.files import check_can_write
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

KEEP_LIST = ListOption("keep", "--keep", "Keep ratios, comma-separated; auto is allowed")
SCORER_LIST = ListOption("scorer", "--scorer", "Scorers, comma-separated")
SPECULATE_LIST = ListOption(
    "speculate", "--speculate", "What is compared with plain decoding: auto or numbers, comma-separated", AUTO
)
# Settings given on the command line, by name, unparsed.
Given = Mapping[str, Any]
Lengths = Annotated[str, typer.Option(help="Prompt lengths in tokens, comma-separated.")]
Repeat = Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Questions to draw at random; default: all.")]
Distractors = Annotated[int, typer.Option(min=0, help="Contexts of other questions to put around each question's own.")]
SampleSeed = Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")]
Shapes = Annotated[
    str | None,
    typer.Option(help="Sizes DRAFT:TARGET with random weights, such as qwen2.5-0.5b:qwen2.5-7b or tiny:tiny."),
]


def whole_numbers(text: str, option: str) -> list[int]:
    """Parse comma-separated whole numbers of at least 1. Raises UsageError for anything else."""
    parts = split_list(text, option)
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{option} {text}: not a whole number of at least 1, or several separated by commas")
    return list(map(int, parts))


def plot_option(figures: str) -> Any:
    """The option `--plot` of a command; figures: what the plot shows."""
    return typer.Option(help=f"Also draw {figures} to this file (SVG).", rich_help_panel=OUTPUT, show_default=False)


def check_plot(plot: Path | None) -> None:
    """Raise SpecprefillError, before measuring anything, if the plot cannot be drawn or written."""
    if plot is None:
        return
    from specprefill_cli.lab.plots import require_matplotlib

    require_matplotlib("--plot")
    check_can_write(plot, "--plot")


def open_for_all(settings: Settings, variants: Sequence[Settings]) -> Session:
    """Load the pair with the draft that all variants need. Raises UsageError where they need different ones."""
    from specprefill_cli.answering.resolve import loads_draft
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.models.sources.pairs import chosen_pair

    by_draft = {chosen_pair(variant).draft: variant for variant in variants if loads_draft(variant)}
    if len(by_draft) > 1:
        drafts = " and ".join(sorted(by_draft))
        raise UsageError(
            f"these modes and scorers need different drafts ({drafts}); name one with --draft, or run them apart"
        )
    return open_session(next(iter(by_draft.values()), settings), draft=bool(by_draft))


def open_measured_session(
    settings: Settings, variants: Sequence[Settings], shapes: str | None, given: Given
) -> Session:
    """Load the pair, or make a pair with random weights. Raises UsageError for options that `shapes` excludes."""
    from specprefill_cli.lab.benchmarks.shapes import shaped_session
    from specprefill_cli.models.machine.quantization import AUTO, NONE

    if shapes is None:
        return open_for_all(settings, variants)
    if {"pair", "draft", "target"} & set(given):
        raise UsageError("--shapes makes models of its own; leave out --pair, --draft and --target")
    if settings.quantization not in (NONE, AUTO):
        raise UsageError("--shapes makes random weights in --dtype; --quantization needs a checkpoint")
    return shaped_session(shapes, settings)


def refuse_ranks(tensor_parallel: int, work: str) -> None:
    """Raise UsageError for work that runs only in a single process."""
    if in_run() or tensor_parallel > 1:
        raise UsageError(
            f"{work} runs in one process; call it without torchrun, and with SPECPREFILL_TENSOR_PARALLEL=1"
        )


def make_folder(path: Path, option: str) -> None:
    """Create a folder. Raises UsageError if it cannot be created or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} {path}: cannot be made ({reason}); give another folder") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write there; give another folder")
