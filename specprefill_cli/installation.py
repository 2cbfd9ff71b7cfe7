"""How this copy of specprefill was installed, and the commands that add packages to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parent.parent


def install_command(extra: str = "") -> str:
    """The command that installs the packages which specprefill needs, with an extra those of the extra too."""
    try:
        return pip_command(*install_arguments(distribution("specprefill"), extra))
    except PackageNotFoundError:
        return pip_command("-e", with_extra(CHECKOUT, extra))


def pip_command(*arguments: str) -> str:
    """A command line of `pip install` for the interpreter that runs."""
    command = [sys.executable, "-m", "pip", "install", *arguments]
    return " ".join(map(quoted_for_windows, command)) if os.name == "nt" else shlex.join(command)


def quoted_for_windows(argument: str) -> str:
    """An argument as cmd.exe and PowerShell take it; they read < and > as redirections."""
    return argument if re.fullmatch(r"[\w.,=\[\]-]+", argument) else f'"{argument}"'


def install_arguments(installed: Distribution, extra: str) -> list[str]:
    """Where the installation came from, if that is still on this machine; else the names of the missing packages."""
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = urlsplit(origin.get("url", ""))
    source = Path(url2pathname(url.path))
    if url.scheme == "file" and source.exists():
        return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), with_extra(source, extra)]
    return missing_packages(installed, extra)


def with_extra(source: Path, extra: str) -> str:
    """A folder or wheel as pip takes it."""
    return f"{source}[{extra}]" if extra else str(source)


def missing_packages(installed: Distribution, extra: str) -> list[str]:
    """The needed packages, with versions, that are absent or of another version; of the extra alone where one is given."""
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in installed.requires or ()]
    if extra:
        needed = [requirement for requirement in needed if requirement.marker is not None]
    needed = [
        requirement for requirement in needed if not requirement.marker or requirement.marker.evaluate({"extra": extra})
    ]
    missing = [requirement for requirement in needed if not is_satisfied(requirement.name, str(requirement.specifier))]
    # All of them where the right versions are there, and yet one cannot be imported.
    return [without_marker(requirement) for requirement in missing or needed]


def without_marker(requirement: Requirement) -> str:
    """A requirement as pip takes it: name, extras and versions."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def is_satisfied(name: str, specifier: str) -> bool:
    """Whether a package is installed in one of the versions."""
    from packaging.specifiers import SpecifierSet

    try:
        return SpecifierSet(specifier).contains(version(name), prereleases=True)
    except PackageNotFoundError:
        return False
