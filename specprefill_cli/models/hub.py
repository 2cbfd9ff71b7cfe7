"""Whether a model is on this machine, and whether the Hugging Face hub can be reached: asked before transformers retries."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.pairs import BUNDLED

TIMEOUT_SECONDS = 5
ELSEWHERE = "give a local folder, or use --pair tiny, which ships with specprefill"


class ModelNotHere(SpecprefillError):
    """A model is not on this machine, and cannot be downloaded now."""


def is_local(name: str) -> bool:
    """Whether a model is bundled or a folder."""
    return name.startswith(BUNDLED) or Path(name).is_dir()


def is_here(name: str) -> bool:
    """Whether a model is bundled or a folder, or its configuration is in the hub's cache.

    Raises SpecprefillError for a name that is no folder and cannot be a hub id.
    """
    if is_local(name):
        return True
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError as error:
        raise SpecprefillError(f"{name}: no such folder, and no name on the hub; check the path") from error


def may_download(name: str, offline: bool) -> bool:
    """Whether files of a model may be fetched: it is from the hub, and neither the user nor the network prevents it.

    Raises ModelNotHere, at once and in one line, for a model that is not on this machine and cannot be fetched.
    """
    if is_local(name):
        return False
    here = is_here(name)
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
        raise ModelNotHere(f"{name}: not in the model cache {constants.HF_HUB_CACHE}{obstacle}; {remedy}, {ELSEWHERE}")
    return False


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
