"""`specprefill pairs`: the named pairs, and what works with a pair."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.doctor import show_checks
from specprefill_cli.cli.loading import prepare_target
from specprefill_cli.cli.options import Given, Json, complete, with_settings
from specprefill_cli.cli.sources import merge_settings
from specprefill_cli.diagnostics.doctor import Check
from specprefill_cli.errors import UsageError
from specprefill_cli.models.pairs import PAIRS, chosen_pair
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.settings import Settings, prompt_folder

app = typer.Typer(invoke_without_command=True)


@app.callback()
def pairs(context: typer.Context, json: Json = False) -> None:
    """List the named pairs of draft and target.

    Examples:
      specprefill pairs

      specprefill config set pair qwen2.5-7b

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


@app.command("check")
@with_settings("models", "prompt", without=("pair", "tensor_parallel", "quantization"))
def check(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a pair, or give --draft and --target.", autocompletion=complete("pair")),
    ] = None,
    *,
    given: Given,
    json: Json = False,
) -> None:
    """Say by name what works with a pair, from its configurations and tokenizers; exit code 1 when it cannot be used.

    Examples:
      specprefill pairs check qwen3-8b

      specprefill pairs check --draft Qwen/Qwen3-0.6B --target ./checkpoint
    """
    models_given = {"draft", "target"} <= set(given)
    if name is None and not models_given:
        raise UsageError("pairs check: give the name of a pair, or both --draft and --target")
    if name is not None and models_given:
        raise UsageError(f"pairs check: --draft and --target replace both models of {name}; leave out its name")
    settings = merge_settings({**given, "pair": name})
    prepare_target(settings, Notes(quiet=False))
    with Notes(json).progress("reading configurations and tokenizers"):
        checks = check_chosen_pair(settings)
    show_checks(checks, json, pair=name)


def check_chosen_pair(settings: Settings) -> list[Check]:
    """Check a pair without its weights. Raises SpecprefillError for a model that cannot be loaded."""
    from specprefill_cli.diagnostics.pair_check import check_pair
    from specprefill_cli.models.outline import load_outline
    from specprefill_cli.models.placement import choose_placement
    from specprefill_cli.models.tokenizers import agreed_tokenizer
    from specprefill_cli.prompting import load_template

    pair = chosen_pair(settings)
    placement = choose_placement(settings.devices)
    template = load_template(settings.prompt or pair.prompt, [prompt_folder(settings)])
    draft, target = (load_outline(model, placement, settings.offline) for model in (pair.draft, pair.target))
    target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    draft_template = load_template(pair.draft_prompt) if pair.draft_prompt is not None else template
    return check_pair(draft, target, template, draft_template)
