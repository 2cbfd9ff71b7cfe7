"""`python -m specprefill_cli.training`: the steps that make the pair `tiny`, each a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Make the bundled pair: tokenizer, corpus, pretrain, tune, export, score, in this order. pretrain may be left "
    "out; pretrain and tune resume from their checkpoints when run again with the same arguments.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Data = Annotated[Path, typer.Option(help="Folder with pretrain/, qa/ and dev/ as JSONL compressed with xz.")]
Run = Annotated[Path, typer.Option(help="Folder of this run: tokenizer, shards, checkpoints, logs.")]
Minutes = Annotated[
    float, typer.Option(help="Length of the step, resumed parts included; the schedule follows the clock.")
]
Shape = Annotated[str, typer.Option(help="Sizes of the pair: cpu, gpu or smoke.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
BatchTokens = Annotated[int, typer.Option(help="Tokens of one update; about 8,192 on a CPU, 262,144 on a large GPU.")]
Workers = Annotated[int, typer.Option(help="Processes that make rows.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Start = Annotated[
    Path | None, typer.Option(help="Begin with these weights: a checkpoint, or an exported pair's folder.")
]
CHARACTERS = 20_000_000


@app.command()
def tokenizer(data: Data, run: Run, characters: int = 8_000_000, vocabulary: int = 8_192) -> None:
    """Train the byte-level BPE on at most CHARACTERS of each text file and write it for transformers and tiktoken."""
    from specprefill_cli.training.corpus import stream_text
    from specprefill_cli.training.shapes import PAIR_SHAPES
    from specprefill_cli.training.tokenizer import save_tokenizer, train_tokenizer

    trained = train_tokenizer(stream_text(data, characters, set()), vocabulary)
    save_tokenizer(trained, run / "tokenizer", PAIR_SHAPES["cpu"].target.context)


@app.command()
def corpus(
    data: Data,
    run: Run,
    characters: Annotated[int, typer.Option(help="Most characters of each text file.")] = 1_000_000_000,
) -> None:
    """Drop what overlaps the dev set or repeats, tokenise the rest, and write shards of 32 MiB to RUN/shards."""
    from specprefill_cli.training.corpus import dev_grams, stream_text
    from specprefill_cli.training.shards import write_shards
    from specprefill_cli.training.tokenizer import load_tokenizer

    counts = write_shards(
        stream_text(data, characters, dev_grams(data)), load_tokenizer(run / "tokenizer"), run / "shards"
    )
    print(counts, flush=True)


@app.command()
def pretrain(
    run: Run,
    minutes: Minutes,
    shape: Shape = "cpu",
    device: Device = "cpu",
    tokens_per_batch: BatchTokens = 8_192,
    workers: Workers = 1,
    rate: Rate = 4e-3,
    length: Annotated[int, typer.Option(help="Tokens of a row.")] = 512,
    text_share: Annotated[float, typer.Option(help="Share of the tokens that count in the loss.")] = 0.25,
    seed: int = 1,
) -> None:
    """Language modelling on RUN/shards, target and draft together; checkpoint and log go to RUN/pretrain."""
    from specprefill_cli.training.shapes import PAIR_SHAPES
    from specprefill_cli.training.shards import ShardStream
    from specprefill_cli.training.tokenizer import load_tokenizer
    from specprefill_cli.training.train import TrainSettings, train

    pair = PAIR_SHAPES[shape]
    stream = ShardStream(
        run / "shards",
        load_tokenizer(run / "tokenizer"),
        tokens_per_batch,
        length,
        pair.target.context,
        text_share,
        seed,
    )
    settings = TrainSettings(
        minutes, tokens_per_batch=tokens_per_batch, matrix_rate=rate, vector_rate=rate, cooldown=0.1, text_weight=1.0,
        workers=workers, seed=seed, device=device, compile=shape != "smoke",
    )  # fmt: skip
    train(pair, settings, stream, run / "pretrain")


@app.command()
def tune(
    data: Data,
    run: Run,
    minutes: Minutes,
    shape: Shape = "cpu",
    device: Device = "cpu",
    tokens_per_batch: BatchTokens = 8_192,
    workers: Workers = 1,
    rate: Rate = 4e-3,
    cooldown: Annotated[float, typer.Option(help="Share of the run, at its end, in which the rate falls.")] = 0.35,
    characters: Annotated[int, typer.Option(help="Most characters of each text file to use.")] = CHARACTERS,
    skip: Annotated[
        int, typer.Option(help="Characters of each text file to pass over first, for another sitting's new text.")
    ] = 0,
    seed: int = 1,
    start: Start = None,
    draft_every: Annotated[
        int,
        typer.Option(help="The draft is updated at every n-th step; 0 leaves it, its heads and its speed as they are."),
    ] = 3,
) -> None:
    """Questions about documents, target and draft together; checkpoint and log go to RUN/tune.

    Begins with --start, else with RUN/pretrain where that was run, else with random weights.
    """
    from specprefill_cli.training.batches import BatchStream
    from specprefill_cli.training.shapes import PAIR_SHAPES
    from specprefill_cli.training.sources import RowSource
    from specprefill_cli.training.train import TrainSettings, train

    pair = PAIR_SHAPES[shape]
    pretrained = run / "pretrain" / "checkpoint.pt"
    if start is None and pretrained.exists():
        start = pretrained
    # Weights of an exported pair have been through the curriculum: they go on with its long documents.
    exported = start is not None and start.is_dir()
    settings = TrainSettings(
        minutes, tokens_per_batch=tokens_per_batch, matrix_rate=rate, vector_rate=rate, workers=workers, seed=seed,
        device=device, compile=shape != "smoke", cooldown=cooldown, draft_every=draft_every,
        curriculum_from=0.75 if exported else 0.0,
    )  # fmt: skip
    source = RowSource(data, run / "tokenizer", characters, skip, pair.target.context)
    train(pair, settings, BatchStream(source, tokens_per_batch, seed), run / "tune", start)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder for target/, draft/ and the tiktoken ranks.")],
    shape: Shape = "cpu",
    average: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the exported pair that the run began with: write the mean of both pairs' weights."
        ),
    ] = None,
    share: Annotated[float, typer.Option(min=0, max=1, help="Weight of the run's pair in that mean.")] = 0.5,
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Write RUN/target.gguf too, for llama.cpp; needs the package gguf.")
    ] = False,
) -> None:
    """Write RUN/tune's checkpoint as folders that transformers loads, and the tokenizer's ranks for tiktoken."""
    from specprefill_cli.training.export import export_pair
    from specprefill_cli.lab.benchmarks.gguf_export import export_gguf
    from specprefill_cli.training.shapes import PAIR_SHAPES

    export_pair(run / "tune" / "checkpoint.pt", run / "tokenizer", PAIR_SHAPES[shape], out, average, share)
    if gguf:
        export_gguf(out / "target", run / "target.gguf")


@app.command()
def score(
    data: Data,
    run: Run,
    pair: Annotated[Path, typer.Option(help="Folder of the exported pair.")],
    limit: Annotated[int, typer.Option(help="Questions of the dev set.")] = 500,
    needles: Annotated[int, typer.Option(help="Needle questions of each length, of 200; 0 leaves them out.")] = 200,
) -> None:
    """Measure the exported pair; scores.json and scores.md go to RUN/scores."""
    from specprefill_cli.training.score import markdown, score_pair
    from specprefill_cli.training.tokenizer import load_tokenizer

    out = run / "scores"
    out.mkdir(parents=True, exist_ok=True)

    def told(text: str) -> None:
        print(f"\r{text}   ", end="", flush=True)

    found = score_pair(data, pair, load_tokenizer(run / "tokenizer"), out, limit, needles, told)
    print("\n" + markdown(found), flush=True)


@app.command()
def dry_run(data: Data, run: Run, minutes: Minutes = 2.0) -> None:
    """All steps but `score` with models of the shape `smoke`, to see that they work: about MINUTES, mostly training."""
    tokenizer(data, run, characters=500_000)
    corpus(data, run, characters=500_000)
    pretrain(run, minutes / 3, shape="smoke", tokens_per_batch=2_048, workers=0)
    tune(data, run, minutes / 2, shape="smoke", tokens_per_batch=2_048, workers=0, characters=500_000)
    export(run, run / "exported", shape="smoke")
    print(f"exported to {run / 'exported'}", flush=True)


if __name__ == "__main__":
    app()
