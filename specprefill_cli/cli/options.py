"""Options that several commands share, and the settings made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli import completion
from specprefill_cli.errors import UsageError

if TYPE_CHECKING:
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.reporting.html import PageResult
    from specprefill_cli.settings import Settings

MODELS, PREFILL, DECODING, OUTPUT = "Models", "Prefill", "Decoding", "Output"

Pair = Annotated[
    str | None,
    typer.Option(
        help="Named pair of draft and target (see `specprefill pairs`).",
        rich_help_panel=MODELS,
        autocompletion=completion.pair_names,
    ),
]
Draft = Annotated[str | None, typer.Option(help="Hub id or folder of the draft model.", rich_help_panel=MODELS)]
Target = Annotated[str | None, typer.Option(help="Hub id or folder of the target model.", rich_help_panel=MODELS)]
Devices = Annotated[
    str | None, typer.Option(help="auto, cpu, or a list such as cuda:0,cuda:1.", rich_help_panel=MODELS)
]
TensorParallel = Annotated[
    int | None,
    typer.Option(
        help="Split each layer of the target across this many GPUs (or CPU processes).", rich_help_panel=MODELS
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help=f"{completion.in_words(completion.DTYPES)}.",
        rich_help_panel=MODELS,
        autocompletion=completion.one_of(*completion.DTYPES),
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help=f"The target's weights: {completion.in_words(completion.QUANTIZATIONS)}.",
        rich_help_panel=MODELS,
        autocompletion=completion.one_of(*completion.QUANTIZATIONS),
    ),
]
Offline = Annotated[
    bool | None, typer.Option("--offline", help="Use only models that are already here.", rich_help_panel=MODELS)
]
Mode = Annotated[
    str | None,
    typer.Option(
        help=f"{completion.in_words(completion.MODES)}.",
        rich_help_panel=PREFILL,
        autocompletion=completion.one_of(*completion.MODES),
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        help="Share of prompt tokens the target computes: 0 to 1, or auto.",
        rich_help_panel=PREFILL,
        autocompletion=completion.one_of(*completion.KEEP),
    ),
]
Scorer = Annotated[
    str | None,
    typer.Option(
        help=f"{completion.in_words(completion.SCORERS)}.",
        rich_help_panel=PREFILL,
        autocompletion=completion.one_of(*completion.SCORERS),
    ),
]
Recompute = Annotated[
    float | None,
    typer.Option(help="Largest share of the prompt that draft KV may recompute: 0 to 1.", rich_help_panel=PREFILL),
]
AcceptRisk = Annotated[
    float | None,
    typer.Option(help="Risk that may remain in accepted draft KV; else full prefill.", rich_help_panel=PREFILL),
]
ExactLayers = Annotated[
    int | None,
    typer.Option(
        help="Number of lowest target layers that draft KV computes exactly for all tokens.", rich_help_panel=PREFILL
    ),
]
LookAhead = Annotated[
    int | None, typer.Option(help="Tokens the draft decodes before scoring.", rich_help_panel=PREFILL)
]
DraftWindow = Annotated[
    str | None,
    typer.Option(
        help="How many tokens back the draft sees while it reads the documents: off, auto or a number.",
        rich_help_panel=PREFILL,
    ),
]
ChunkSize = Annotated[int | None, typer.Option(help="Document tokens chosen together.", rich_help_panel=PREFILL)]
PrefillChunk = Annotated[
    str | None,
    typer.Option(
        help="Tokens a forward pass reads at once: a number, or auto: chosen from free memory.", rich_help_panel=PREFILL
    ),
]
Prompt = Annotated[
    str | None, typer.Option(help="Prompt template: a name, or the path of a .toml file.", rich_help_panel=PREFILL)
]
MaxNewTokens = Annotated[int | None, typer.Option(help="Longest answer in tokens.", rich_help_panel=DECODING)]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=DECODING)]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the smallest set of tokens with this mass.", rich_help_panel=DECODING)
]
TopK = Annotated[
    int | None, typer.Option(help="Sample from the K likeliest tokens; 0 is all.", rich_help_panel=DECODING)
]
Seed = Annotated[int | None, typer.Option(help="Seed of sampling.", rich_help_panel=DECODING)]
Speculate = Annotated[
    str | None,
    typer.Option(help="Tokens proposed ahead of the target: off, auto or a number.", rich_help_panel=DECODING),
]
Proposer = Annotated[
    str | None, typer.Option(help="Who proposes them: draft, lookup or auto.", rich_help_panel=DECODING)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.", rich_help_panel=OUTPUT)]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Also write a page to this file: the document by importance and fate, the answer's source, the times.",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No table, no progress and no warnings.", rich_help_panel=OUTPUT)
]


def settings_from(flags: Mapping[str, Any]) -> Settings:
    """Settings from the flags of a command whose names are those of settings; others are left aside.

    Raises UsageError for a value that cannot be read.
    """
    from dataclasses import fields

    from specprefill_cli.settings import Settings, merge_settings

    names = {field.name for field in fields(Settings)}
    return merge_settings({name: value for name, value in flags.items() if name in names})


def check_html(path: Path | None) -> None:
    """Raises UsageError, before models are loaded, for a page that could not be written."""
    from specprefill_cli.files import check_can_write

    if path is not None:
        check_can_write(path, "--html")


def check_no_document(path: Path | None, collection: Collection, option: str = "--html") -> None:
    """Raises UsageError for a file to write that is one of the documents."""
    from specprefill_cli.files import same_file

    if path is not None and any(same_file(path, Path(one.name)) for one in collection.documents):
        raise UsageError(f"{option} {path}: this is one of the documents; give another name")


def check_question(question: str) -> None:
    """Raises UsageError for a question that is empty, or that is the last of several documents."""
    from specprefill_cli.documents.cleaning import clean_question

    clean_question(question)
    if os.path.exists(question):
        raise UsageError(
            f"{question}: this is a file, but it stands where the question belongs; give the question last, in quotes"
        )


def write_html(path: Path, question: str, collection: Collection, results: Sequence[PageResult]) -> None:
    """Write the page of a question. Raises SpecprefillError when it cannot be written."""
    from specprefill_cli.files import write_whole
    from specprefill_cli.reporting.html import render_page

    write_whole(path, render_page(question, collection, results))
