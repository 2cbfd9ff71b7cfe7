"""Options of commands: those of settings, merged with defaults, config file and environment, and a few others."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.declarations import ENVIRONMENT_PREFIX, Setting, check_choice, flag, in_words
from specprefill_cli.errors import UsageError
from specprefill_cli.files import read_toml
from specprefill_cli.models.sources.pairs import PAIRS, SMOLLM2, with_named_pair
from specprefill_cli.models.sources.smollm2 import install_command
from specprefill_cli.prefill.registry import REGISTRIES, check_name
from specprefill_cli.settings import AUTO, OUTPUT, PREFILL, SETTINGS, Settings, config_path, parse_setting

PAIR = SETTINGS["pair"]
# Settings without effect where only the draft runs.
OF_TARGET = ("mode", "tensor_parallel", "quantization")

output_option = functools.partial(typer.Option, rich_help_panel=OUTPUT)
Json = Annotated[bool, output_option("--json", help="Print one JSON object on standard output.")]
Html = Annotated[
    Path | None,
    output_option(
        "--html",
        help="Also write an HTML page to this file: importance and fate of each chunk, sources, times.",
        show_default="none",
    ),
]
Quiet = Annotated[bool, output_option("--quiet", "-q", help="Print no table, no progress and no warnings.")]
# Documents and question are required; `new_request` reports a missing argument with an example.
Documents = Annotated[
    list[str] | None,
    typer.Argument(metavar="DOCUMENTS", help="Files, folders or globs; - is standard input.", show_default="required"),
]
Question = Annotated[
    str | None,
    typer.Argument(metavar="QUESTION", help="The question, in quotes; - is standard input.", show_default="required"),
]
NoServer = Annotated[bool, typer.Option("--no-server", help="Load the models here even if a server is running.")]


def choices_of(setting: Setting) -> Sequence[str]:
    """All values that a setting accepts; empty if it accepts any string or number."""
    # Only `--pair` needs a known pair; `--draft` and `--target` do not.
    names = PAIRS if setting.name == "pair" else REGISTRIES.get(setting.name)
    return setting.choices if names is None else (AUTO, *names)


def split_list(text: str, option: str) -> list[str]:
    """The values of a comma-separated list, without repetitions. Raises UsageError for an empty list."""
    values = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not values:
        raise UsageError(f"{option}: empty; give one value, or several separated by commas")
    return values


@dataclass(frozen=True)
class ListOption:
    """An option for a list of values of the setting `name`. default: None: the setting's own value."""

    name: str
    flag: str
    help: str
    default: str | None = None

    def values(self, text: str | None, setting_value: Any) -> list[Any]:
        """The values in the list, without one the setting's own value. Raises UsageError for a wrong value."""
        text = self.default if text is None else text
        if text is None:
            return [setting_value]
        values = [parse_setting(self.name, part, self.flag) for part in split_list(text, self.flag)]
        for value in values:
            check_name(self.name, value, self.flag)
        return values

    def parameter(self) -> Parameter:
        option = typer.Option(self.flag, help=f"{self.help}.", rich_help_panel=PREFILL, metavar="<list>")
        default = self.default or shown_default(SETTINGS[self.name])
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[str, option])


MODE_LIST = ListOption("mode", "--modes", "Prefill modes, comma-separated", "full,select")


def with_settings(
    *names: str, without: Collection[str] = (), lists: Collection[ListOption] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for settings: whole panels ("models") or single settings ("seed") by name.

    They stand where the first of these parameters stands: `settings`, the merged `Settings`; `given`, those given on the
    command line; the plural of a setting with a list option (`modes`), its values.
    """
    list_options = {option.name: option for option in lists}
    possible = (setting for setting in SETTINGS.values() if setting.name not in {*without, *list_options})
    chosen_settings = [setting for setting in possible if setting.panel.lower() in names or setting.name in names]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        accepted = inspect.signature(function, eval_str=True).parameters
        supplied_names = {"settings", "given", *(f"{name}s" for name in list_options)}
        options = [*(option.parameter() for option in lists), *map(parameter_of, chosen_settings)]
        first_supplied = next(index for index, name in enumerate(accepted) if name in supplied_names)
        parameters = [parameter for name, parameter in accepted.items() if name not in supplied_names]
        parameters[first_supplied:first_supplied] = options
        parameters.insert(0, Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context))

        @functools.wraps(function)
        def command(context: typer.Context, **arguments: Any) -> None:
            option_values = {option.name: arguments.pop(option.name) for option in options}
            sources = {name: context.get_parameter_source(name) for name in option_values}
            named = (name for name, source in sources.items() if source and source.name == "COMMANDLINE")
            given = {name: option_values[name] for name in named}
            supplied_values: dict[str, Any] = {"given": given}
            if "settings" in accepted:
                settings = merge_settings({name: value for name, value in given.items() if name not in list_options})
                if PAIR in chosen_settings:
                    settings = name_pair(settings, Notes(arguments.get("quiet", False)))
                supplied_values["settings"] = settings
                for name, option in list_options.items():
                    supplied_values[f"{name}s"] = option.values(given.get(name), getattr(settings, name))
            function(**arguments, **{name: value for name, value in supplied_values.items() if name in accepted})

        keyword_only = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def name_pair(settings: Settings, notes: Notes) -> Settings:
    """Replace the pair `auto` by its name, and note how to get a better pair."""
    named_settings = with_named_pair(settings)
    name = named_settings.pair
    if settings.pair == AUTO and settings.target is None and name == "tiny":
        notes.line(f"answers come from the small pair {name}; a better one: {install_command()}")
    elif settings.pair == AUTO and settings.target is None and name != SMOLLM2:
        notes.line(f"pair {name}: the best whose weights are here (--pair {SMOLLM2} is smaller and quicker)")
    return named_settings


def without_confirmation(settings: Settings, notes: Notes) -> Settings:
    """The settings of a command that confirms no answer; warn if the environment or the config file asks for it."""
    if settings.confirm:
        notes.warn("confirm is set, but only ask and compare confirm answers; this command goes on without it")
    return settings.varied(confirm=False)


def parameter_of(setting: Setting) -> Parameter:
    """The option of a setting as a parameter for typer. Only the help uses its default."""
    # `specprefill pairs` lists the pairs: they would fill a page.
    choices = () if setting is PAIR else choices_of(setting)
    option = typer.Option(
        setting.flag,
        help=f"{setting.help}{f': {in_words(list(choices))}' if choices else ''}.",
        rich_help_panel=setting.panel,
        hidden=setting.rare,
        show_default=setting.unset or True,
        metavar=f"<{'|'.join([*setting.words, setting.type.__name__])}>",
    )
    return Parameter(
        setting.name,
        Parameter.KEYWORD_ONLY,
        default=shown_default(setting),
        annotation=Annotated[bool if setting.type is bool else str | None, option],
    )


def shown_default(setting: Setting) -> str | bool | None:
    """The default value that `--help` shows."""
    if setting.default is None:
        return AUTO if AUTO in setting.words else None
    return False if setting.type is bool else str(setting.default)


@dataclass(frozen=True)
class Sourced:
    """A value and its source: "default", "file" or "environment"; place: the file's path, or the variable."""

    value: Any
    source: str
    place: str | None = None


def merge_settings(flags: Mapping[str, Any]) -> Settings:
    """Merge config file, environment and flags (None: not given). Raises UsageError, naming the place of a fault."""
    sourced = sourced_values()
    if flags.get("pair") is not None:
        sourced = without_models(sourced, above="flag")
    parsed = {name: parse_setting(name, value, flag(name)) for name, value in flags.items() if value is not None}
    settings = Settings(**{name: value.value for name, value in sourced.items()} | parsed)
    for name in ("pair", *REGISTRIES):
        label = flag(name) if name in parsed else f"{sourced[name].place}: {name}"
        check_choice(getattr(settings, name), choices_of(SETTINGS[name]), label)
    return settings


def without_models(sourced: Mapping[str, Sourced], above: str) -> dict[str, Sourced]:
    """Drop the draft and target of all sources except `above`: a pair named in a source replaces those below it."""
    dropped = {role: Sourced(None, "default") for role in ("draft", "target") if sourced[role].source != above}
    return {**sourced, **dropped}


def sourced_values() -> dict[str, Sourced]:
    """Every setting by name, merged from defaults, config file and environment. Raises UsageError as `merge_settings`."""
    sourced = {name: Sourced(setting.default, "default") for name, setting in SETTINGS.items()}
    path = config_path()
    if os.path.exists(path):
        place, values = str(path), read_toml(path, str(path))
        parsed = {name: parse_setting(name, value, place) for name, value in values.items()}
        sourced |= {name: Sourced(value, "file", place) for name, value in parsed.items()}
    elif os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG"):
        raise UsageError(f"{ENVIRONMENT_PREFIX}CONFIG: {path} does not exist; fix or unset the variable")
    for name, setting in SETTINGS.items():
        if setting.variable in os.environ:
            value = setting.parse(os.environ[setting.variable], setting.variable)
            sourced[name] = Sourced(value, "environment", setting.variable)
    if sourced["pair"].source == "environment":
        sourced = without_models(sourced, above="environment")
    return sourced
