"""Refuses models that specprefill cannot run correctly, and says why."""

from __future__ import annotations

from collections.abc import Collection

from transformers import PretrainedConfig, PreTrainedModel

from specprefill_cli.errors import SpecprefillError

GIBIBYTE = 2**30
# What a configuration sets where a model cannot be run, and why; the braces stand for its type.
UNSUPPORTED = {
    "attn_logit_softcapping": "attention with logit soft-capping ({}) is not supported; use a newer generation, for "
    "example Gemma 3",
    "is_encoder_decoder": "an encoder-decoder ({}) is not a causal language model; use another",
    "num_kv_shared_layers": "layers that share one KV cache ({}) are not supported; use another",
}
# Missing weights that an error names.
NAMED = 3


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raises SpecprefillError for an architecture whose attention would be computed wrongly."""
    text = config.get_text_config()
    for attribute, fault in UNSUPPORTED.items():
        if getattr(text, attribute, None):
            raise SpecprefillError(f"{name}: {fault.format(text.model_type)}")
    unknown = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise SpecprefillError(
            f"{name}: layers of type '{sorted(unknown)[0]}' hold no plain KV cache; use another model"
        )


def check_model(model: PreTrainedModel, name: str) -> None:
    """Raises SpecprefillError for a model that does not run specprefill's attention, or does not fit its devices."""
    if not model.is_backend_compatible():
        raise SpecprefillError(f"{name}: {type(model).__name__} computes attention in its own way; use another model")
    if any(parameter.endswith(".sinks") for parameter, _ in model.named_parameters()):
        raise SpecprefillError(
            f"{name}: attention with learnt sinks ({type(model).__name__}) is not supported; use another"
        )
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if "disk" in places:
        raise SpecprefillError(
            f"{name}: does not fit the devices given; use more of them (--devices auto takes all GPUs and main memory), or a "
            "smaller model"
        )


def check_complete(missing: Collection[str], name: str) -> None:
    """Raises SpecprefillError for weights that a checkpoint lacks: transformers would initialise them at random."""
    if missing:
        ordered = sorted(missing)
        more = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
        raise SpecprefillError(
            f"{name}: the checkpoint lacks weights ({', '.join(ordered[:NAMED])}{more}); download or export it again"
        )
