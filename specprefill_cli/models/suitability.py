"""Models that specprefill cannot run, or not rightly, named with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Architectures whose attention our function does not reproduce.
SOFT_CAPPED = "attn_logit_softcapping"


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raises SpecprefillError for an architecture whose attention would be computed wrongly."""
    text = config.get_text_config()
    if getattr(text, SOFT_CAPPED, None):
        raise SpecprefillError(f"{name}: attention with logit soft-capping ({text.model_type}) is not supported; use a "
                               "newer generation, for example Gemma 3")  # fmt: skip
    if getattr(text, "is_encoder_decoder", False):
        raise SpecprefillError(
            f"{name}: an encoder-decoder ({text.model_type}) is not a causal language model; use another"
        )
    unknown = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise SpecprefillError(
            f"{name}: layers of type '{sorted(unknown)[0]}' hold no plain KV cache; use another model"
        )


def check_model(model: PreTrainedModel, name: str) -> None:
    """Raises SpecprefillError for a model that would not run our attention, or not where it can be run."""
    if not model.is_backend_compatible():
        raise SpecprefillError(f"{name}: {type(model).__name__} computes attention in its own way; use another model")
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if "disk" in places and len(places) > 1:
        raise SpecprefillError(
            f"{name}: does not fit the devices given; use more of them (--devices auto takes all GPUs and main memory), or a "
            "smaller model"
        )
