"""Loads a pair: weights and tokenizers, from a folder or the hub."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import synchronize
from specprefill_cli.models.attention import ATTENTION, avoid_cudnn
from specprefill_cli.models.cache import device_of
from specprefill_cli.models.gguf import agreed_tokenizer, is_gguf, quiet_reader
from specprefill_cli.models.memory_estimate import cache_bytes, weight_bytes
from specprefill_cli.models.pairs import Pair
from specprefill_cli.models.placement import (
    Placement,
    check_shards,
    choose_dtype,
    draft_placement,
    gathered,
    how_to_place,
)
from specprefill_cli.models.quantization import NONE, check_quantization, quantization_config
from specprefill_cli.models.rope_scaling import RopeScaling, context_length
from specprefill_cli.models.sources import auto_class, load_errors, quiet_library, source_of
from specprefill_cli.models.tokenizers import check_fast, fingerprint
from specprefill_cli.models.validation import check_complete, check_config, check_memory, check_model
from specprefill_cli.settings import Settings

# What transformers takes for Mistral's checkpoints where the package mistral-common is installed; it gives no character
# offsets, and the same checkpoint's tokenizer.json does.
MISTRAL_COMMON = "MistralCommonBackend"


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


@dataclass
class LoadedModel:
    """A model ready to run.

    context: the longest prompt it was made for, in tokens
    pass_tokens: the fixed cost of a pass, in tokens computed in the same time, where it was measured
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    stop_tokens: frozenset[int]
    pass_tokens: float | None = None

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def device(self) -> str:
        return str(device_of(self.model.get_input_embeddings()))

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        return frozenset(parameter.device for parameter in self.model.parameters() if not parameter.is_meta)

    @property
    def warnings(self) -> list[str]:
        """What makes it slower than it could be."""
        places = list((getattr(self.model, "hf_device_map", None) or {}).values())
        left = places.count("cpu")
        if not left:
            return []
        if left == len(places):
            return [f"{self.name}: no part of it fits the GPUs as they are; all of it runs on the CPU"]
        return [
            f"{self.name}: {left} of {len(places)} parts do not fit the GPUs; every pass brings them from main memory, which "
            "is slow: use more GPUs, or a smaller pair"
        ]

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.tokenizer)


@dataclass
class LoadedPair:
    """Draft and target, loaded; `draft` is None for modes and scorers that run without one.

    The target is an outline where only a plan is wanted: then no mode can prefill.

    ranks: the processes that share the target
    """

    pair: Pair
    target: LoadedModel | ModelOutline
    draft: LoadedModel | None
    ranks: Ranks = ALONE

    @property
    def loaded_target(self) -> LoadedModel:
        """The target with its weights. Raises SpecprefillError where only its outline was loaded."""
        if not isinstance(self.target, LoadedModel):
            raise SpecprefillError(f"{self.target.name}: its weights are not loaded, so that nothing can be prefilled")
        return self.target

    @property
    def loaded_draft(self) -> LoadedModel:
        """The draft. Raises SpecprefillError where none was loaded."""
        if self.draft is None:
            raise SpecprefillError(f"{self.pair.draft}: the draft is not loaded; use --mode full or --scorer lexical")
        return self.draft

    @cached_property
    def same_tokenizer(self) -> bool:
        return self.draft is not None and self.draft.fingerprint == self.target.fingerprint

    @cached_property
    def devices(self) -> frozenset:
        """All devices that the pair runs on."""
        return self.target.devices | (self.draft.devices if self.draft is not None else frozenset())

    def wait(self) -> None:
        """Synchronise the devices of both models."""
        synchronize(self.devices)


def load_pair(pair: Pair, placement: Placement, settings: Settings, with_draft: bool, with_target: bool) -> LoadedPair:
    """Load target and draft of a pair and check them; without the target's weights, only its outline.

    Only the target's weights are quantised: the draft is small.

    Raises SpecprefillError when a model cannot be loaded or is not supported.
    """
    dtype, offline, scaling = settings.dtype, settings.offline, RopeScaling.parse(settings.rope_scaling)
    target: LoadedModel | ModelOutline
    if with_target:
        check_quantization(settings.quantization, placement)
        target = load_model(pair.target, placement, dtype, offline, settings.quantization, scaling)
    else:
        target = load_outline(pair.target, placement, offline, scaling)
    draft = None
    if with_draft:
        near = device_of(target.model.get_input_embeddings()).index if isinstance(target, LoadedModel) else None
        draft = load_model(pair.draft, draft_placement(placement, near), dtype, offline, NONE, scaling)
        target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    return LoadedPair(pair, target, draft)


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
        if type(tokenizer).__name__ == MISTRAL_COMMON:
            tokenizer = TokenizersBackend.from_pretrained(**source_of(name, offline))
    check_fast(tokenizer, name)
    return ModelOutline(name, config, tokenizer, placement.device_type)


def load_model(
    name: str,
    placement: Placement,
    dtype: str,
    offline: bool,
    quantization: str = NONE,
    scaling: RopeScaling | None = None,
) -> LoadedModel:
    """Load one causal language model with specprefill's attention, from a folder, the hub (safetensors only) or a GGUF file.

    quantization: one of `QUANTIZATIONS`; a quantised checkpoint loads as it is
    scaling: what its context is extended by

    Raises SpecprefillError when it cannot be loaded, is not supported, does not fit this machine, or lacks weights.
    """
    outline = load_outline(name, placement, offline, scaling)
    check_shards(outline.config, name, placement.shards)
    text = outline.config.get_text_config()
    chosen = choose_dtype(dtype, placement, text.hidden_size, text.model_type)
    quantized = quantization_config(quantization, outline.config, name, chosen)
    with load_errors(name, offline), quiet_library(), quiet_reader(name):
        check_memory(outline.config, name, placement, chosen)
        if placement.device_map == "auto":
            cache = cache_bytes(outline.config, outline.context, chosen)
            placement = gathered(placement, weight_bytes(outline.config, chosen, quantization) + cache)
        avoid_cudnn(placement.device_type)
        model, report = auto_class(outline.config).from_pretrained(
            **source_of(name, offline),
            dtype=chosen,
            **({} if quantized is None else {"quantization_config": quantized}),
            **({} if scaling is None else {"config": outline.config}),
            **how_to_place(placement),
            attn_implementation=ATTENTION,
            use_safetensors=not is_gguf(name),
            output_loading_info=True,
        )
    check_complete(report["missing_keys"], name)
    check_model(model, name)
    return LoadedModel(name, model.eval(), outline.tokenizer, outline.context, stop_tokens(model, outline.tokenizer))


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end an answer: those of the generation configuration and of the tokenizer."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(number for number in [*ids, tokenizer.eos_token_id] if number is not None)
