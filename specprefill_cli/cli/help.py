"""How `--help` looks."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption


class Command(TyperCommand):
    """A command whose help fits any width, and whose usage shows an argument's metavar without more brackets and dots."""

    def __init__(self, *arguments: Any, help: str | None = None, **values: Any) -> None:
        super().__init__(*arguments, help=unwrapped(help or ""), **values)
        for param in self.params:
            # A flag takes no value, so that no type belongs beside it.
            if isinstance(param, TyperOption) and param.is_flag:
                param.metavar = ""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        pieces = (
            piece
            for param in arguments
            for piece in ([param.metavar] if param.metavar else param.get_usage_pieces(ctx))
        )
        return [str(self.options_metavar), *pieces]


def unwrapped(text: str) -> str:
    """A help text with each paragraph on one line; examples keep their lines."""
    description, heading, examples = inspect.cleandoc(text).partition("\n\nExample")
    return "\n\n".join(" ".join(part.split("\n")) for part in description.split("\n\n")) + heading + examples


def tidy(app: typer.Typer) -> None:
    """Let all commands of an app, and of the apps in it, show their help in one way."""
    for command in app.registered_commands:
        if not issubclass(command.cls or TyperCommand, Command):
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            tidy(group.typer_instance)
