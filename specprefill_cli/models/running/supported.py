"""Which architectures run here: errors for those that would compute wrongly, and the length of a model's context."""

from typing import Any

from accelerate import init_empty_weights
from transformers import PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from specprefill_cli.errors import SpecprefillError

# Settings of a configuration that rule a model out, and why; braces are replaced by the model's type.
UNSUPPORTED = {
    "attn_logit_softcapping": "attention with logit soft-capping ({}) is not supported; use a newer generation, for "
    "example Gemma 3",
    "is_encoder_decoder": "an encoder-decoder ({}) is not a causal language model; use another",
    "num_kv_shared_layers": "layers that share one KV cache ({}) are not supported; use another",
}


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raises SpecprefillError for an architecture with attention that specprefill would compute wrongly."""
    text = config.get_text_config()
    for attribute, fault in UNSUPPORTED.items():
        if getattr(text, attribute, None):
            raise SpecprefillError(f"{name}: {fault.format(text.model_type)}")
    unknown = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise SpecprefillError(f"{name}: layers of type '{min(unknown)}' hold no plain KV cache; use another model")


def check_model(model: PreTrainedModel, name: str) -> None:
    """Raises SpecprefillError for a model that does not run specprefill's attention, or of which layers are on the disk."""
    if any(weight.is_meta for weight in model.parameters()):
        raise SpecprefillError(
            f"{name}: not all layers fit the GPUs; use a smaller model, --quantization or more --devices"
        )
    if not model.is_backend_compatible():
        raise SpecprefillError(f"{name}: {type(model).__name__} computes attention in its own way; use another model")
    if any(parameter.endswith(".sinks") for parameter, _ in model.named_parameters()):
        problem = f"{name}: attention with learnt sinks ({type(model).__name__}) is not supported; use another"
        raise SpecprefillError(problem)


def context_length(config: PretrainedConfig) -> int:
    """The context in tokens; with YaRN (arXiv 2309.00071) the extended one, which many do not state."""
    text = config.get_text_config()
    stated = int(getattr(text, "max_position_embeddings", 0) or 1_048_576)
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") != "yarn":
        return stated
    return max(stated, int(rotary.get("factor", 1.0) * rotary.get("original_max_position_embeddings", 0)))


def model_class(config: PretrainedConfig) -> Any:
    """The class of a checkpoint's model, also a vision-language one. Raises ValueError where transformers has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"transformers has no causal language model for the type {config.model_type}")


def empty_model(config: PretrainedConfig, **options: Any) -> PreTrainedModel:
    """A model without memory for its weights. options: of transformers' `_from_config`, such as the dtype."""
    with init_empty_weights(include_buffers=False), no_init_weights():
        build = model_class(config)
        model: PreTrainedModel = build._from_config(config, **options) if options else build(config)
    model.tie_weights()
    return model
