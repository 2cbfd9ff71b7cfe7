"""What a prefill costs: exact floating-point operations, and the speedup they promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.models.adapter import pass_overhead

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Below this promised speedup `--mode auto` stays with full prefill.
WORTHWHILE = 1.2


@dataclass(frozen=True)
class ModelCost:
    """Sizes that decide what a forward pass costs."""

    layers: int
    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    overhead_tokens: int

    @classmethod
    def of(cls, config: PretrainedConfig, device_type: str = "cpu") -> ModelCost:
        text = config.get_text_config()
        heads = text.num_attention_heads
        return cls(
            layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            heads=heads,
            key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
            intermediate_size=text.intermediate_size,
            vocabulary=text.vocab_size,
            overhead_tokens=pass_overhead(device_type),
        )

    def linear_flops(self, tokens: int) -> float:
        """Projections and gated MLP: two operations for each weight and token."""
        attention = self.hidden_size * self.head_size * (2 * self.heads + 2 * self.key_value_heads)
        return 2.0 * tokens * self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    def attention_flops(self, tokens: int, past: int = 0) -> float:
        """Causal attention of `tokens` queries behind `past` keys: two products, each 2 operations per pair and size."""
        pairs = tokens * past + tokens * (tokens + 1) / 2
        return 4.0 * pairs * self.layers * self.heads * self.head_size

    def prefill_flops(self, tokens: int, past: int = 0) -> float:
        """One forward pass over `tokens`, with the vocabulary's logits for the last one."""
        return self.linear_flops(tokens) + self.attention_flops(tokens, past) + 2.0 * self.hidden_size * self.vocabulary

    def overhead_flops(self) -> float:
        return self.linear_flops(self.overhead_tokens)


def promised_speedup(
    target: ModelCost, draft: ModelCost | None, prompt_tokens: int, kept_tokens: int, look_ahead: int
) -> float:
    """Time of full prefill over that of draft prefill, look-ahead and sparse prefill, by operations and pass overhead."""
    full = target.prefill_flops(prompt_tokens) + target.overhead_flops()
    sparse = target.prefill_flops(kept_tokens) + target.overhead_flops()
    if draft is not None:
        sparse += draft.prefill_flops(prompt_tokens) + draft.overhead_flops()
        sparse += look_ahead * (draft.prefill_flops(1, prompt_tokens) + draft.overhead_flops())
    return full / sparse
