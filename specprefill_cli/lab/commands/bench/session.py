"""What `bench` measures: a pair, or one of known sizes with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.options import Given
from specprefill_cli.errors import UsageError
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

Shapes = Annotated[
    str | None,
    typer.Option(help="Sizes DRAFT:TARGET with random weights, such as qwen2.5-0.5b:qwen2.5-7b or tiny:tiny."),
]


def open_measured_session(
    settings: Settings, variants: Sequence[Settings], shapes: str | None, given: Given
) -> Session:
    """Load the pair, or make one with random weights. Raises UsageError for options that `shapes` excludes."""
    from specprefill_cli.answering.resolve import loads_draft
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.benchmarks.shapes import shaped_session
    from specprefill_cli.models.quantization import NONE

    if shapes is None:
        return open_session(settings, draft=any(map(loads_draft, variants)))
    if {"pair", "draft", "target"} & set(given):
        raise UsageError("--shapes makes models of its own; leave out --pair, --draft and --target")
    if settings.quantization != NONE:
        raise UsageError("--shapes makes random weights in --dtype; --quantization needs a checkpoint")
    return shaped_session(shapes, settings)
