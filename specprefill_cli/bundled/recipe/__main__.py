"""`python -m specprefill_cli.bundled.recipe`: the steps that make the pair `tiny`, each a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Make the bundled pair: tokenizer, train, export, in this order. Training resumes from its checkpoint.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Data = Annotated[Path, typer.Option(help="Folder with pretrain/, qa/ and dev/ as JSONL compressed with xz.")]
Run = Annotated[Path, typer.Option(help="Folder of this run: tokenizer, checkpoint, log.")]
CHARACTERS = 20_000_000


@app.command()
def tokenizer(data: Data, run: Run, characters: int = 8_000_000, vocabulary: int = 8_192) -> None:
    """Train the byte-level BPE on at most CHARACTERS of each text file and write it for transformers and tiktoken."""
    from specprefill_cli.bundled.recipe.corpus import stream_text
    from specprefill_cli.bundled.recipe.shapes import PAIR_SHAPES
    from specprefill_cli.bundled.recipe.tokenizer import save_tokenizer, train_tokenizer

    trained = train_tokenizer(stream_text(data, characters, set()), vocabulary)
    save_tokenizer(trained, run / "tokenizer", PAIR_SHAPES["cpu"].target.context)


@app.command()
def train(
    data: Data,
    run: Run,
    minutes: Annotated[float, typer.Option(help="Length of the whole run; the schedule follows the clock.")],
    shape: Annotated[str, typer.Option(help="Sizes of the pair: cpu, gpu or smoke.")] = "cpu",
    device: str = "cpu",
    tokens_per_batch: int = 8_192,
    workers: int = 1,
    characters: Annotated[int, typer.Option(help="Most characters of each text file to use.")] = CHARACTERS,
    seed: int = 1,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 4e-3,
    start: Annotated[Path | None, typer.Option(help="Begin with the weights of this exported pair.")] = None,
) -> None:
    """Train target and draft together; run again with the same arguments to resume."""
    from specprefill_cli.bundled.recipe.shapes import PAIR_SHAPES
    from specprefill_cli.bundled.recipe.sources import RowSource
    from specprefill_cli.bundled.recipe.train import TrainSettings
    from specprefill_cli.bundled.recipe.train import train as run_training

    source = RowSource(data, run / "tokenizer", characters, PAIR_SHAPES[shape].target.context)
    settings = TrainSettings(
        minutes, tokens_per_batch=tokens_per_batch, workers=workers, seed=seed, device=device, compile=shape != "smoke",
        matrix_rate=rate, vector_rate=rate, curriculum_from=0.1 if start else 0.0,
    )  # fmt: skip
    run_training(PAIR_SHAPES[shape], settings, source, run, start)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder for target/, draft/ and the tiktoken ranks.")],
    shape: str = "cpu",
) -> None:
    """Write the checkpoint as folders that transformers loads, and the tokenizer's ranks for tiktoken."""
    from specprefill_cli.bundled.recipe.export import export_pair
    from specprefill_cli.bundled.recipe.shapes import PAIR_SHAPES

    export_pair(run, PAIR_SHAPES[shape], out)


if __name__ == "__main__":
    app()
