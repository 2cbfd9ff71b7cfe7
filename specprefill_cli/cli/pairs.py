"""`specprefill pairs`: the named pairs, and what works with a pair."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.config import store
from specprefill_cli.cli.console import Notes, console, plain_table, print_json
from specprefill_cli.cli.doctor import show_checks
from specprefill_cli.cli.loading import prepare_target
from specprefill_cli.cli.options import Given, Json, complete, with_settings
from specprefill_cli.cli.sources import merge_settings, read_config
from specprefill_cli.diagnostics.doctor import DEFAULT_TOKENS, Check, State, any_broken, format_bytes, pair_fits
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.hub import ALL_FILES, SMALL_FILES, download, is_here, may_download, missing_bytes
from specprefill_cli.models.pairs import PAIRS, find_pair
from specprefill_cli.models.refs import ModelRef
from specprefill_cli.settings import Settings, config_path

app = typer.Typer(invoke_without_command=True)

Name = Annotated[str, typer.Argument(help="Name of a pair.", autocompletion=complete("pair"), show_default=False)]
LOAD_DOCUMENT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill. " * 12
LOAD_QUESTION = "What do tickets cost?"


@app.callback()
def pairs(context: typer.Context, json: Json = False) -> None:
    """List the named pairs of draft and target.

    Examples:
      specprefill pairs

      specprefill ask report.pdf "Who signed it?" --pair qwen2.5-7b

      specprefill pairs --json | jq -r '.pairs[].target'
    """
    if context.invoked_subcommand is not None:
        return
    if json:
        print_json({"pairs": [asdict(pair) for pair in PAIRS.values()]})
        return
    table = plain_table("pair", "draft", "target", "note")
    for pair in PAIRS.values():
        table.add_row(pair.name, pair.draft, pair.target, pair.note)
    console(sys.stdout).print(table)


@app.command("show")
def show(name: Name, json: Json = False) -> None:
    """Show one pair: its models, whether they are on this machine, and its prompt template.

    Example:
      specprefill pairs show qwen2.5-7b
    """
    pair = find_pair(name)
    models = {"draft": pair.draft, "target": pair.target}
    here = {role: is_here(model) for role, model in models.items()}
    if json:
        print_json(asdict(pair) | {"here": here})
        return
    table = plain_table()
    table.add_row("pair", pair.name)
    for role, model in models.items():
        table.add_row(role, f"{model}  ({'on this machine' if here[role] else 'not downloaded yet'})")
    table.add_row("prompt", pair.prompt)
    if pair.note:
        table.add_row("note", pair.note)
    console(sys.stdout).print(table)


@app.command("use")
def use(name: Name) -> None:
    """Set up a pair: check memory and disk, download its models, and make it the pair of all commands.

    Files on this machine are not downloaded again. `specprefill pairs use tiny` goes back to the bundled pair.

    Example:
      specprefill pairs use qwen2.5-1.5b
    """
    pair = find_pair(name)
    settings = merge_settings({"pair": name})
    # By model, whether it may be downloaded; checked for both before anything is.
    models = {
        model: may_download(model, settings.offline)
        for model in (pair.draft, pair.target)
        if not ModelRef(model).is_local
    }
    for model, allowed in models.items():
        download(model, SMALL_FILES, local_files_only=not allowed)
    notes = Notes(quiet=False)
    prepare_target(settings, notes)
    with notes.progress("counting the memory that the pair needs"):
        checks = list(pair_fits(settings, DEFAULT_TOKENS))
    if any_broken(checks):
        notes.warn(f"{name} does not fit this machine; the pair in use stays")
    else:
        check_disk(name, sum(missing_bytes(model) for model, allowed in models.items() if allowed))
        for model, allowed in models.items():
            download(model, ALL_FILES, local_files_only=not allowed)
        store("pair", name)
        forget_models()
    show_checks(checks, json=False)


def check_disk(name: str, needed: int) -> None:
    """Raises SpecprefillError where a pair's files, in bytes, do not fit the disk of the model cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if needed > free:
        raise SpecprefillError(
            f"{name}: {format_bytes(needed)} are to be downloaded, and {format_bytes(free)} are free in {folder}; make "
            "room, set HF_HOME to a folder on another disk, or use a smaller pair"
        )


def forget_models() -> None:
    """Remove a draft and a target from the config file: they would replace those of the pair that stands there."""
    from specprefill_cli.cli.sources import unset_value

    file = config_path()
    for role in {"draft", "target"} & set(read_config(file)):
        unset_value(file, role)
        print(f"{role} is removed from {file}: it would replace the pair's", file=sys.stderr)


@app.command("check")
@with_settings("models", "prompt", without=("pair", "tensor_parallel", "quantization"))
def check(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a pair, or give --draft and --target.", autocompletion=complete("pair")),
    ] = None,
    *,
    given: Given,
    load: Annotated[
        bool, typer.Option("--load", help="Load the weights too, and answer a question in `full` and `select`.")
    ] = False,
    json: Json = False,
) -> None:
    """Say by name what works with a pair, from its configurations and tokenizers; exit code 1 when it cannot be used.

    Examples:
      specprefill pairs check qwen3-8b

      specprefill pairs check --draft Qwen/Qwen3-0.6B --target ./checkpoint --load
    """
    both_models = {"draft", "target"} <= set(given)
    if name is None and not both_models:
        raise UsageError("pairs check: give the name of a pair, or both --draft and --target")
    if name is not None and both_models:
        raise UsageError(f"pairs check: --draft and --target replace both models of {name}; leave out its name")
    settings = merge_settings({**given, "pair": name})
    prepare_target(settings, Notes(quiet=False))
    with Notes(json).progress("reading configurations and tokenizers"):
        checks = examine(settings)
    if load and not any_broken(checks):
        with Notes(json).progress("loading the models"):
            checks.append(try_out(settings))
    show_checks(checks, json, pair=name)


def examine(settings: Settings) -> list[Check]:
    """Check a pair without its weights. Raises SpecprefillError for a model that cannot be loaded."""
    from specprefill_cli.diagnostics.pair_check import check_pair
    from specprefill_cli.models.outline import load_outline
    from specprefill_cli.models.placement import choose_placement
    from specprefill_cli.models.tokenizers import agreed_tokenizer
    from specprefill_cli.prompting import load_template

    pair = find_pair(settings.pair, settings.draft, settings.target)
    placement = choose_placement(settings.devices)
    template = load_template(settings.prompt or pair.prompt)
    draft, target = (load_outline(model, placement, settings.offline) for model in (pair.draft, pair.target))
    target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    own = load_template(pair.draft_prompt) if pair.draft_prompt is not None else template
    return check_pair(draft, target, template, own)


def try_out(settings: Settings) -> Check:
    """Load the pair and prefill a short document in `full` and `select`."""
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.documents.document import Collection, one_page_document
    from specprefill_cli.reporting.table import seconds

    collection = Collection((one_page_document("check", LOAD_DOCUMENT, "text/plain"),))
    session = open_session(settings, draft=True)
    times = []
    for mode in ("full", "select"):
        stream = session.ask(collection, LOAD_QUESTION, settings.varied(mode=mode, keep=0.5, max_new_tokens=1))
        list(stream)
        times.append(f"{mode} {seconds(stream.request.clock.ttft)}")
    return Check("loaded", State.OK, f"first token after {', '.join(times)} for {stream.request.prompt.length} tokens")
