"""The `pip install` commands that messages name."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def install_command(extra: str = "") -> str:
    """The command that installs the packages of an extra; without an extra, the packages that specprefill needs."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(text) for text in requires("specprefill") or ()]
    except PackageNotFoundError:
        return pip_command("-e", f"{CHECKOUT}[{extra}]" if extra else str(CHECKOUT))
    return pip_command(
        *(
            f"{requirement.name}{requirement.specifier}"
            for requirement in requirements
            if (requirement.marker.evaluate({"extra": extra}) if requirement.marker else not extra)
        )
    )


def pip_command(*arguments: str) -> str:
    """The `pip install` command line for the current interpreter."""
    command = [sys.executable, "-m", "pip", "install", *arguments]
    return " ".join(map(quote_for_windows, command)) if os.name == "nt" else shlex.join(command)


def quote_for_windows(argument: str) -> str:
    """Quote an argument for cmd.exe and PowerShell; they read < and > as redirections."""
    return argument if re.fullmatch(r"[\w.,=\[\]-]+", argument) else f'"{argument}"'
