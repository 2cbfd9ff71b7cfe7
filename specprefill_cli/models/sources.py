"""Where models come from (the package, a folder, the hub), as which class, and errors on the way."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.models import smollm2
from specprefill_cli.models.hub import ELSEWHERE, may_download
from specprefill_cli.models.refs import Kind, ModelRef

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def model_source(name: str) -> str:
    """The folder or hub id of a model name. Raises what `ModelRef.source` raises."""
    return ModelRef(name).source()["pretrained_model_name_or_path"]


def source_of(name: str, offline: bool) -> dict[str, Any]:
    """The arguments of `from_pretrained` that say where a model is, and whether it may be downloaded."""
    place = ModelRef(name).source()
    return {**place, "local_files_only": not may_download(name, offline), "trust_remote_code": False}


@contextmanager
def load_errors(name: str, offline: bool) -> Iterator[None]:
    """Turn what transformers raises for a model that cannot be loaded into a SpecprefillError with cause and remedy."""
    from safetensors import SafetensorError
    from torch import OutOfMemoryError

    try:
        yield
    except OutOfMemoryError as error:
        raise SpecprefillError(
            f"{name}: does not fit the memory of its device ({first_line(error)}); use a smaller model, --dtype bfloat16, or "
            "more --devices"
        ) from error
    except (OSError, ValueError, LookupError, ImportError, RuntimeError, SafetensorError, struct.error) as error:
        remedy = f"check its files{'' if offline else ', its name and the network'}, {ELSEWHERE}"
        if ModelRef(name).kind is Kind.PACKAGED:
            remedy = f"remove the folder {smollm2.conversion_of(name).folder}, which is then made again"
        raise SpecprefillError(f"{name}: cannot be loaded ({first_line(error)}); {remedy}") from error


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the terminal while it loads."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def auto_class(config: PretrainedConfig) -> Any:
    """The transformers class that loads a checkpoint: vision-language models (Mistral 3) have one of their own."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class that a checkpoint becomes; None where transformers has no causal language model for it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    mappings: tuple[Any, ...] = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    return next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)
