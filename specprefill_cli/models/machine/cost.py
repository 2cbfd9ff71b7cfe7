"""Cost of a prefill in floating-point operations (FLOPs)."""

from collections import Counter
from dataclasses import dataclass, replace

from transformers import PretrainedConfig

from specprefill_cli.models.loaded import LoadedModel, ModelOutline
from specprefill_cli.models.running.adapter import window_layers
from specprefill_cli.models.running.attention_plan import SINKS, LocalWindow
from specprefill_cli.models.running.packed import last_token_runs_apart, pass_overhead


@dataclass(frozen=True)
class ModelCost:
    """Sizes that determine the cost of a forward pass; its figures are for all ranks together.

    overhead_tokens: the fixed cost of a pass in tokens, as assumed
    ranks: how many divide its operations, but not the fixed cost
    """

    layers: int
    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    overhead_tokens: int
    windows: tuple[int | None, ...]
    ranks: int = 1

    @classmethod
    def of(cls, config: PretrainedConfig, device_type: str = "cpu") -> "ModelCost":
        text = config.get_text_config()
        heads = text.num_attention_heads
        # Of a mixture of experts, the width of all experts that are active for a token together.
        width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
        shared = getattr(text, "shared_expert_intermediate_size", None) or 0
        return cls(
            layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            heads=heads,
            key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
            intermediate_size=(getattr(text, "num_experts_per_tok", None) or 1) * width + shared,
            vocabulary=text.vocab_size,
            overhead_tokens=pass_overhead(device_type),
            windows=tuple(window_layers(config)),
        )

    @property
    def layer_weights(self) -> int:
        """Weights of a layer's projections and gated MLP."""
        attention = self.hidden_size * self.head_size * (2 * self.heads + 2 * self.key_value_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size

    def linear_flops(self, tokens: float) -> float:
        """Projections and gated MLP of all layers: 2 FLOPs per weight and token."""
        return 2.0 * tokens * self.layers * self.layer_weights

    def attention_flops(
        self, tokens: int, past: int = 0, local_window: LocalWindow | None = None, layers: int | None = None
    ) -> float:
        """Causal attention of `tokens` queries after `past` keys, in the first `layers` layers (None: all)."""
        counts = Counter(self.windows[:layers])
        pairs = sum(count * attended_pairs(tokens, past, window, local_window) for window, count in counts.items())
        # Two products of 2 FLOPs per pair and dimension.
        return 4.0 * pairs * self.heads * self.head_size

    def reading_flops(
        self, tokens: int, last_layer: int, local_window: LocalWindow | None = None, past: int = 0
    ) -> float:
        """A pass over `tokens` that ends with queries, keys and values of `last_layer`."""
        below = last_layer / self.layers
        projections = self.hidden_size * self.head_size * (self.heads + 2 * self.key_value_heads)
        attention = self.attention_flops(tokens, past, local_window, last_layer)
        return below * self.linear_flops(tokens) + attention + 2.0 * tokens * projections

    def pass_flops(self, tokens: int, past: int = 0, local_window: LocalWindow | None = None) -> float:
        """A whole forward pass over `tokens` tokens, with the logits of the last."""
        attention = self.attention_flops(tokens, past, local_window)
        return self.linear_flops(tokens) + attention + 2.0 * self.hidden_size * self.vocabulary

    def prefill_flops(self, tokens: int, local_window: LocalWindow | None = None, past: int = 0) -> float:
        """Prefill as `adapter.prefill` does it: the last token may run apart. past: tokens in the cache."""
        if not last_token_runs_apart(tokens, self.layers, self.overhead_tokens):
            return self.pass_flops(tokens, past, local_window)
        last = replace(self, layers=1, windows=self.windows[-1:])
        return self.reading_flops(tokens, self.layers - 1, local_window, past) + last.pass_flops(1, past + tokens - 1)

    def overhead_flops(self) -> float:
        """The fixed cost of a pass, in FLOPs: what all ranks could compute in that time."""
        return self.ranks * self.linear_flops(self.overhead_tokens)

    def prefill_with_overhead(self, tokens: int, past: int = 0) -> float:
        """`prefill_flops` and the fixed cost of a pass, in FLOPs."""
        return self.prefill_flops(tokens, past=past) + self.overhead_flops()


def attended_pairs(tokens: int, past: int, window: int | None, local_window: LocalWindow | None = None) -> float:
    """Pairs of query and key in causal attention of `tokens` queries after `past` keys.

    window: of the layer, in tokens; local_window: of a pass over a whole prompt (`past` is 0)
    """
    limited = min(tokens, local_window.until) if local_window is not None else 0
    size = local_window.size if local_window is not None else 0
    if limited <= size or (window is not None and window <= size):
        growing = tokens if window is None else min(max(0, window - past), tokens)
        return growing * past + growing * (growing + 1) / 2 + (tokens - growing) * (window or 0)
    beyond = limited - size
    sinks = min(SINKS, beyond)
    inside = size * (size + 1) / 2 + beyond * (size + sinks) - sinks * (sinks - 1) / 2
    return inside + attended_pairs(tokens - limited, limited, window)


def cost_of(loaded: LoadedModel | ModelOutline) -> ModelCost:
    """The cost model of a model on its device."""
    ranks = getattr(getattr(loaded, "model", None), "_tp_size", None) or 1
    return replace(ModelCost.of(loaded.config, loaded.device.partition(":")[0]), ranks=ranks)
