"""A model without its weights: its configuration and its tokenizer; and reasons to refuse a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TokenizersBackend,
)

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.hub import load_errors, source_of
from specprefill_cli.models.placement import Placement
from specprefill_cli.models.tokenizers import check_fast, fingerprint

# Settings of a configuration that rule a model out, and why; the braces stand for its type.
UNSUPPORTED = {
    "attn_logit_softcapping": "attention with logit soft-capping ({}) is not supported; use a newer generation, for "
    "example Gemma 3",
    "is_encoder_decoder": "an encoder-decoder ({}) is not a causal language model; use another",
    "num_kv_shared_layers": "layers that share one KV cache ({}) are not supported; use another",
}
# Missing weights that an error names.
NAMED = 3
# For these tokenizer classes of transformers the checkpoint's tokenizer.json is read as it is: the first (taken if the
# package mistral-common is installed) gives no character offsets, the second splits digits as GPT-2 does, not as SmolLM2.
REPLACED = ("MistralCommonBackend", "GPT2Tokenizer")


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raises SpecprefillError for an architecture with attention that specprefill would compute wrongly."""
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
        rest = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
        raise SpecprefillError(
            f"{name}: the checkpoint lacks weights ({', '.join(ordered[:NAMED])}{rest}); download or export it again"
        )


def context_length(config: PretrainedConfig) -> int:
    """The context in tokens; with YaRN (arXiv 2309.00071), the extended one.

    With YaRN many configurations state the original length; with `dynamic` scaling all do, and it is the limit here.
    With other kinds of scaling they state the extended length.
    """
    text = config.get_text_config()
    stated = int(getattr(text, "max_position_embeddings", 0) or 1_048_576)
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") != "yarn":
        return stated
    return max(stated, int(rotary.get("factor", 1.0) * rotary.get("original_max_position_embeddings", 0)))


@dataclass
class ModelOutline:
    """A model without its weights: enough to plan a prefill and to check a pair.

    device: where its weights would go, as a type ("cpu", "cuda", "mps")
    """

    name: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    device: str
    pass_tokens: None = None
    flops_per_second: None = None
    shards: int = 1

    @property
    def context(self) -> int:
        return context_length(self.config)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.tokenizer)

    @property
    def devices(self) -> frozenset[torch.device]:
        """None: nothing of it is loaded."""
        return frozenset()


def load_outline(name: str, placement: Placement, offline: bool) -> ModelOutline:
    """Load the configuration and the tokenizer of a causal language model, from a folder or the hub.

    Raises SpecprefillError when they cannot be loaded, or belong to a model that is not supported.
    """
    with load_errors(name, offline):
        config = AutoConfig.from_pretrained(**source_of(name, offline))
        check_config(config, name)
        tokenizer = AutoTokenizer.from_pretrained(**source_of(name, offline))
        if type(tokenizer).__name__ in REPLACED:
            tokenizer = TokenizersBackend.from_pretrained(**source_of(name, offline))
    check_fast(tokenizer, name)
    return ModelOutline(name, config, tokenizer, placement.device_type)
