"""How `--help` looks."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand


class Command(TyperCommand):
    """A command whose usage shows an argument's metavar as it is: typer would add brackets and dots."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        pieces = (
            piece
            for param in arguments
            for piece in ([param.metavar] if param.metavar else param.get_usage_pieces(ctx))
        )
        return [str(self.options_metavar), *pieces]


def tidy(app: typer.Typer) -> None:
    """Let all commands of an app, and of the apps in it, show their help in one way."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            tidy(group.typer_instance)
