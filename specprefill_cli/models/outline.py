"""A model without its weights: its configuration and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from specprefill_cli.models.placement import Placement
from specprefill_cli.models.rope_scaling import RopeScaling, context_length
from specprefill_cli.models.sources import load_errors, source_of
from specprefill_cli.models.tokenizers import check_fast, fingerprint
from specprefill_cli.models.validation import check_config

# Classes of transformers in place of which a checkpoint's tokenizer.json is read as it is: the first, taken where the
# package mistral-common is installed, gives no character offsets, and the second splits digits as GPT-2 does (SmolLM2 does not).
REPLACED = ("MistralCommonBackend", "GPT2Tokenizer")


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


def load_outline(name: str, placement: Placement, offline: bool, scaling: RopeScaling | None = None) -> ModelOutline:
    """Load the configuration and the tokenizer of a causal language model, from a folder or the hub.

    scaling: what its context is extended by

    Raises SpecprefillError when they cannot be loaded, or belong to a model that is not supported.
    """
    from transformers import AutoConfig, AutoTokenizer, TokenizersBackend

    with load_errors(name, offline):
        config = AutoConfig.from_pretrained(**source_of(name, offline))
        check_config(config, name)
        if scaling is not None:
            scaling.apply(config, name)
        tokenizer = AutoTokenizer.from_pretrained(**source_of(name, offline))
        if type(tokenizer).__name__ in REPLACED:
            tokenizer = TokenizersBackend.from_pretrained(**source_of(name, offline))
    check_fast(tokenizer, name)
    return ModelOutline(name, config, tokenizer, placement.device_type)
