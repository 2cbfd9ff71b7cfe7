"""Models of published sizes with random weights: the time of a prefill does not depend on the weights' values.

The sizes are those in each model's published `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.pairs import BUNDLED, Pair
from specprefill_cli.models.placement import choose_dtype, choose_placement
from specprefill_cli.models.sources import model_source
from specprefill_cli.models.validation import check_memory
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prompting import load_template
from specprefill_cli.settings import Settings, prompt_folder

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

CONTEXT = 1 << 20
# The bundled pair's sizes, without its limit of 16,384 tokens.
TINY = "tiny"


@dataclass(frozen=True)
class Shape:
    """Sizes of one published model."""

    family: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    rope_theta: float


SHAPES: Mapping[str, Shape] = {
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4_864, 14, 2, 64, 151_936, True, 1e6),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1_536, 8_960, 12, 2, 128, 151_936, True, 1e6),
    "qwen2.5-7b": Shape("qwen2", 28, 3_584, 18_944, 28, 4, 128, 152_064, False, 1e6),
    "qwen2.5-14b": Shape("qwen2", 48, 5_120, 13_824, 40, 8, 128, 152_064, False, 1e6),
    "qwen2.5-32b": Shape("qwen2", 64, 5_120, 27_648, 40, 8, 128, 152_064, False, 1e6),
    "qwen2.5-72b": Shape("qwen2", 80, 8_192, 29_568, 64, 8, 128, 152_064, False, 1e6),
    "qwen3-0.6b": Shape("qwen3", 28, 1_024, 3_072, 16, 8, 128, 151_936, True, 1e6),
    "qwen3-8b": Shape("qwen3", 36, 4_096, 12_288, 32, 8, 128, 151_936, False, 1e6),
    "qwen3-32b": Shape("qwen3", 64, 5_120, 25_600, 64, 8, 128, 151_936, False, 1e6),
    "llama-3.2-1b": Shape("llama", 16, 2_048, 8_192, 32, 8, 64, 128_256, True, 5e5),
    "llama-3.1-8b": Shape("llama", 32, 4_096, 14_336, 32, 8, 128, 128_256, False, 5e5),
    "llama-3.1-70b": Shape("llama", 80, 8_192, 28_672, 64, 8, 128, 128_256, False, 5e5),
}


def shape_pair(text: str) -> tuple[str, str]:
    """The names of draft and target in `DRAFT:TARGET`. Raises UsageError for anything else."""
    names = [part.strip().lower() for part in text.split(":")]
    known = (TINY, *SHAPES)
    unknown = [name for name in names if name not in known]
    if len(names) != 2 or unknown:
        problem = f"'{unknown[0]}' is unknown" if unknown else "needs two names"
        raise UsageError(f"--shapes {text}: {problem}; give DRAFT:TARGET of {', '.join(known)}")
    return names[0], names[1]


def shape_config(shape: Shape) -> PretrainedConfig:
    """The transformers configuration of a shape."""
    from transformers import CONFIG_MAPPING

    # Any: the sizes are arguments of the families' own configurations, not of their base class.
    config_class: Any = CONFIG_MAPPING[shape.family]
    return config_class(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_size,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        max_position_embeddings=CONTEXT,
    )


def named_config(name: str, role: str) -> PretrainedConfig:
    """The configuration of a name in `--shapes`; for `tiny` the bundled model of the role, "draft" or "target"."""
    from transformers import AutoConfig

    if name != TINY:
        return shape_config(SHAPES[name])
    config = AutoConfig.from_pretrained(model_source(f"{BUNDLED}{role}"))
    config.max_position_embeddings = CONTEXT
    return config


def shaped_session(text: str, settings: Settings) -> Session:
    """A session with the pair `DRAFT:TARGET`, with random weights on one device, and the bundled tokenizer.

    Raises SpecprefillError if the device has too little memory.
    """
    import torch
    from transformers import AutoTokenizer

    draft, target = shape_pair(text)
    placement = choose_placement(settings.devices)
    device = f"cuda:{placement.gpus[0]}" if placement.gpus else placement.device_type
    configs = {"target": named_config(target, "target"), "draft": named_config(draft, "draft")}
    dtype = choose_dtype(settings.dtype, placement, configs["target"].hidden_size)
    tokenizer = AutoTokenizer.from_pretrained(model_source("tiny:target"))
    try:
        models = []
        for name, role in ((target, "target"), (draft, "draft")):
            check_memory(configs[role], f"--shapes {text}, {role}", placement, dtype)
            models.append(random_model(f"{name} {role}", configs[role], tokenizer, device, dtype))
    except torch.OutOfMemoryError as error:
        raise SpecprefillError(
            f"--shapes {text}: does not fit {device}; use smaller shapes, or --dtype bfloat16"
        ) from error
    template = load_template(settings.prompt or "tiny", [prompt_folder(settings)])
    pair = CalibratedPair(Pair(text, draft, target, "tiny"), models[0], models[1])
    return Session(pair=pair, template=template)


def random_model(
    name: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, device: str, dtype: torch.dtype
) -> LoadedModel:
    """A model with random weights and no stop tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=dtype)
    return LoadedModel(f"random {name}", model.eval(), tokenizer, CONTEXT, frozenset())
