"""`python -m specprefill_cli.training`: the steps that make the pair `tiny`, each a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.answering.session import open_session
from specprefill_cli.lab.benchmarks.gguf import export_gguf
from specprefill_cli.lab.session import LONGEST_ANSWER
from specprefill_cli.lab.tables import markdown
from specprefill_cli.settings import Settings
from specprefill_cli.training.batches import BatchStream
from specprefill_cli.training.corpus import EVERYDAY, stream_text, written_documents
from specprefill_cli.training.encoder_tuning import TuningSettings, tune_encoder
from specprefill_cli.training.export import export_pair
from specprefill_cli.training.recipe import PAIR_SHAPES, TrainSettings
from specprefill_cli.training.rows import RowSource
from specprefill_cli.training.smollm2.network import Rank
from specprefill_cli.training.smollm2.source import ChatRowSource, held_out_questions
from specprefill_cli.training.smollm2.train import AdapterSettings, train_adapter
from specprefill_cli.training.tokenizer import save_tokenizer, train_tokenizer
from specprefill_cli.training.train import train
from specprefill_cli.training.unanswerable import COLUMNS, measure_not_found, question_pairs

app = typer.Typer(
    help="Make the bundled pair: tokenizer, tune, export, in this order; tune resumes from its checkpoint when run again "
    "with the same arguments.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Data = Annotated[Path, typer.Option(help="Folder with pretrain/, qa/ and dev/ as JSONL compressed with xz.")]
Run = Annotated[Path, typer.Option(help="Folder of this run: tokenizer, checkpoints, logs.")]
Minutes = Annotated[
    float, typer.Option(help="Length of the step, resumed parts included; the schedule follows the clock.")
]
Shape = Annotated[str, typer.Option(help="Sizes of the pair: cpu or smoke.")]
BatchTokens = Annotated[int, typer.Option(help="Tokens of an update.")]
Workers = Annotated[int, typer.Option(help="Processes that make rows.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Everyday = Annotated[Path, typer.Option(help="Written documents with questions, as `training/everyday.jsonl.xz`.")]
Characters = Annotated[int, typer.Option(help="Most characters to use of each text file.")]


@app.command()
def tokenizer(data: Data, run: Run, characters: Characters = 8_000_000) -> None:
    """Train the byte-level BPE and write it for transformers and tiktoken."""
    shape = PAIR_SHAPES["cpu"]["target"]
    trained = train_tokenizer(stream_text(data, characters, set()), shape.vocabulary)
    save_tokenizer(trained, run / "tokenizer", shape.context)


@app.command()
def tune(
    data: Data,
    run: Run,
    minutes: Minutes,
    shape: Shape = "cpu",
    tokens_per_batch: BatchTokens = 8_192,
    workers: Workers = 1,
    rate: Rate = 4e-3,
    cooldown: Annotated[float, typer.Option(help="Part of the run, at its end, in which the rate falls.")] = 0.35,
    characters: Characters = 20_000_000,
    skip: Annotated[
        int, typer.Option(help="Characters of each text file to skip, to train on others than before.")
    ] = 0,
    seed: int = 1,
    start: Annotated[
        Path | None, typer.Option(help="Folder of an exported pair to begin with; without it with random weights.")
    ] = None,
    draft_every: Annotated[int, typer.Option(help="Update the draft at every n-th step; 0 leaves it unchanged.")] = 3,
) -> None:
    """Questions about documents, target and draft together; checkpoint and log go to RUN/tune."""
    pair = PAIR_SHAPES[shape]
    settings = TrainSettings(
        minutes=minutes,
        rate=rate,
        cooldown=cooldown,
        workers=workers,
        seed=seed,
        compile=shape != "smoke",
        draft_every=draft_every,
        # An exported pair has been through the curriculum and continues with its long documents.
        curriculum_from=0.75 if start else 0.0,
    )
    source = RowSource(data, run / "tokenizer", characters, pair["target"].context, skipped_characters=skip)
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
    weight: Annotated[float, typer.Option(min=0, max=1, help="Weight of the run's pair in that mean.")] = 0.5,
    gguf: Annotated[bool, typer.Option("--gguf", help="Write RUN/target.gguf too, for llama.cpp.")] = False,
) -> None:
    """Write RUN/tune's checkpoint as folders that transformers loads, and the tokenizer's ranks for tiktoken."""
    export_pair(run / "tune" / "checkpoint.pt", run / "tokenizer", PAIR_SHAPES[shape], out, average, weight)
    if gguf:
        export_gguf(out / "target", run / "target.gguf")


@app.command()
def smollm2(
    data: Data,
    model: Annotated[Path, typer.Option(help="Folder of SmolLM2-135M-Instruct as transformers loads it.")],
    run: Run,
    start: Annotated[Path | None, typer.Option(help="Begin with this adapter, a folder in PEFT's format.")] = None,
    updates: Annotated[int, typer.Option(help="Updates of the whole run, resumed parts included.")] = 1_000,
    cooldown: Annotated[int, typer.Option(help="Updates at the end in which the learning rate falls.")] = 200,
    rows: Annotated[int, typer.Option(help="Rows of an update.")] = 10,
    rate: Rate = 5e-4,
    processes: Annotated[int, typer.Option(help="Processes of one thread each; one a core.")] = 2,
    everyday: Everyday = EVERYDAY,
    seed: int = 1,
) -> None:
    """Train the adapter of `smollm2`; checkpoint, adapter and log go to RUN. Run again to resume."""
    settings = AdapterSettings(rows=rows, rate=rate, updates=updates, cooldown=cooldown, processes=processes, seed=seed)
    train_adapter(ChatRowSource(data, model, everyday), settings, Rank(), run, start)


@app.command()
def encoder(
    data: Data,
    run: Run,
    everyday: Everyday = EVERYDAY,
    hold_out: Annotated[int, typer.Option(help="Every n-th written document is measured on, not trained on.")] = 8,
    updates: int = 300,
    rate: Rate = 5e-5,
    seed: int = 1,
) -> None:
    """Teach the sentence encoder late chunks; encoder and log go to RUN."""
    documents = written_documents(everyday)
    held_out = documents[::hold_out]
    training = [document for document in documents if document not in held_out]
    tune_encoder(data, training, held_out, TuningSettings(updates=updates, rate=rate, seed=seed), run)


@app.command()
def not_found(
    data: Data,
    pair: Annotated[str, typer.Option(help="Named pair to measure.")] = "smollm2",
    questions: Annotated[
        int, typer.Option(min=1, help="Dev questions, each on its own paragraph and on another.")
    ] = 300,
) -> None:
    """Measure how often a pair's `not found` is right, at 5 % false alarms and in greedy decoding."""
    settings = Settings(pair=pair, mode="full", max_new_tokens=LONGEST_ANSWER)
    pairs = question_pairs(data / "dev" / "squad11_dev.jsonl.xz", questions, 0)
    figures = measure_not_found(open_session(settings, draft=False), pairs, settings)
    print(markdown([figures], COLUMNS), flush=True)


@app.command()
def held_out(data: Data, out: Annotated[Path, typer.Option(help="JSONL file to write.")]) -> None:
    """Write the questions held out of the training of `smollm2`, for `evaluate` and `calibrate`."""
    rows = held_out_questions(data)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows):,} questions on {len({row['context'] for row in rows}):,} contexts", flush=True)


@app.command()
def dry_run(data: Data, run: Run, minutes: Minutes = 2.0) -> None:
    """Run all steps with models of the shape `smoke`. Takes about MINUTES, mostly for training."""
    tokenizer(data, run, characters=500_000)
    tune(data, run, minutes, shape="smoke", tokens_per_batch=2_048, workers=0, characters=500_000)
    export(run, run / "exported", shape="smoke")
    print(f"exported to {run / 'exported'}", flush=True)


if __name__ == "__main__":
    app()
