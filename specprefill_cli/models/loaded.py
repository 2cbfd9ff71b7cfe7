"""A pair of models as the rest of the product sees it: loaded, or as an outline without weights."""

from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specprefill_cli.distributed import ALONE, Ranks
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.running.cache import device_of
from specprefill_cli.models.running.supported import context_length
from specprefill_cli.models.sources.pairs import Pair
from specprefill_cli.models.sources.tokenizers import fingerprint


@dataclass
class ModelOutline:
    """A model without its weights, to plan and to check a pair. device: the type of that where they would go."""

    name: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    device: str

    @property
    def context(self) -> int:
        return context_length(self.config)

    @property
    def devices(self) -> frozenset[torch.device]:
        return frozenset()


@dataclass
class LoadedModel:
    """A model ready to run. context: the longest prompt it was made for, in tokens."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    stop_tokens: frozenset[int]

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def device(self) -> str:
        return str(device_of(self.model.get_input_embeddings()))

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        return frozenset(parameter.device for parameter in self.model.parameters())


@dataclass
class LoadedPair:
    """Target (or its outline) and draft, if needed. ranks: they share the target, and rank 0 alone has a draft."""

    pair: Pair
    target: LoadedModel | ModelOutline
    draft: LoadedModel | None
    ranks: Ranks = ALONE

    @property
    def loaded_target(self) -> LoadedModel:
        """The target with its weights. Raises SpecprefillError where only its outline was loaded."""
        if not isinstance(self.target, LoadedModel):
            raise SpecprefillError(f"{self.target.name}: its weights are not loaded; it cannot prefill")
        return self.target

    @property
    def loaded_draft(self) -> LoadedModel:
        """The draft. Raises SpecprefillError where none was loaded."""
        if self.draft is None:
            raise SpecprefillError(f"{self.pair.draft}: the draft is not loaded; use --mode full or --scorer lexical")
        return self.draft

    @cached_property
    def same_tokenizer(self) -> bool:
        if self.draft is None or len(self.draft.tokenizer) != len(self.target.tokenizer):
            # A fingerprint of a large tokenizer takes a second.
            return False
        return fingerprint(self.draft.tokenizer) == fingerprint(self.target.tokenizer)

    @cached_property
    def devices(self) -> frozenset:
        return self.target.devices | (self.draft.devices if self.draft is not None else frozenset())
