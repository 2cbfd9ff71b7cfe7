"""What stands for the target of a pair where it is behind an endpoint: a name, and the draft's tokens."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig

from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.outline import ModelOutline

# No prompt is too long here: the server knows its model's context, and says when it is exceeded.
NO_LIMIT = 2**40


@dataclass
class EndpointOutline(ModelOutline):
    """A target of which only its name is known.

    Its prompt is counted in the draft's tokens. Where `auto` of a setting depends on its size, it is taken for a model of
    7 billion parameters, which is what transformers' own configuration of Llama describes.
    """

    @property
    def context(self) -> int:
        return NO_LIMIT


def endpoint_outline(name: str, draft: LoadedModel) -> EndpointOutline:
    """The outline of a target for one draft."""
    return EndpointOutline(name, LlamaConfig(), draft.tokenizer, draft.device.partition(":")[0])
