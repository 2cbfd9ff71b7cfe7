"""How this copy of specprefill was installed, and the commands that add packages to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

CHECKOUT = Path(__file__).resolve().parent.parent


def install_command(extra: str = "") -> str:
    """The command that installs the packages which specprefill needs, with an extra those of the extra."""
    try:
        return pip_command(*install_arguments(distribution("specprefill"), extra))
    except PackageNotFoundError:
        return pip_command("-e", with_extra(CHECKOUT, extra))


def with_extra(source: Path, extra: str) -> str:
    """A folder or wheel as pip takes it."""
    return f"{source}[{extra}]" if extra else str(source)


def pip_command(*arguments: str) -> str:
    """A command line of `pip install` for the interpreter that runs."""
    command = [sys.executable, "-m", "pip", "install", *arguments]
    return " ".join(map(quoted_for_windows, command)) if os.name == "nt" else shlex.join(command)


def quoted_for_windows(argument: str) -> str:
    """An argument as cmd.exe and PowerShell take it; they read < and > as redirections."""
    return argument if re.fullmatch(r"[\w.,=\[\]-]+", argument) else f'"{argument}"'


def install_arguments(installed: Distribution, extra: str) -> list[str]:
    """Where the installation came from, if that is still on this machine; else the names of the packages."""
    from packaging.requirements import Requirement

    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = urlsplit(origin.get("url", ""))
    source = Path(url2pathname(url.path))
    if url.scheme == "file" and source.exists():
        return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), with_extra(source, extra)]
    packages = map(Requirement, installed.requires or ())
    chosen = [
        package for package in packages if (package.marker.evaluate({"extra": extra}) if package.marker else not extra)
    ]
    for package in chosen:
        package.marker = None
    return list(map(str, chosen))
