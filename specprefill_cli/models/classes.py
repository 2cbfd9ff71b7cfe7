"""Which transformers class a checkpoint becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def auto_class(config: PretrainedConfig) -> Any:
    """The transformers class that loads a checkpoint: vision-language models (Mistral 3) have one of their own."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText


def model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The class that a checkpoint becomes; None where transformers has no causal language model for it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    mappings: tuple[Any, ...] = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    return next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)
