"""Small random models, one for each supported architecture."""

from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import torch
import transformers

from specprefill_cli.models.running.attention import ATTENTION

VOCABULARY = 8_192
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4_096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 48

ARCHITECTURES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES,
        head_dim=32,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES),
}


def build_model(name, seed=0, attention=ATTENTION, **sizes):
    """Build a random model. Large weights keep its attention far from uniform. sizes: changes to SIZES."""
    torch.manual_seed(seed)
    config = ARCHITECTURES[name]()
    config.update(sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


def random_tokens(count, seed=0):
    return torch.randint(3, VOCABULARY - 192, (count,), generator=torch.Generator().manual_seed(seed))


@contextmanager
def failing(module, error):
    """In the block, a pass through the module raises an error of this type."""
    with module.register_forward_pre_hook(Mock(side_effect=error)), pytest.raises(error):
        yield
