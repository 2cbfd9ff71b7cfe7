"""Models of published sizes with random weights: the time of a prefill does not depend on the weights' values.

The sizes, in shapes.json, are those in each model's published `config.json`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.attention import ATTENTION, avoid_cudnn
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


@cache
def published_shapes() -> dict[str, dict[str, Any]]:
    """The sizes of published models by name, as transformers' configurations take them."""
    return json.loads((resources.files(__package__) / "shapes.json").read_text(encoding="utf-8"))


def shape_pair(text: str) -> tuple[str, str]:
    """The names of draft and target in `DRAFT:TARGET`. Raises UsageError for anything else."""
    names = [part.strip().lower() for part in text.split(":")]
    known = (TINY, *published_shapes())
    unknown = [name for name in names if name not in known]
    if len(names) != 2 or unknown:
        problem = f"'{unknown[0]}' is unknown" if unknown else "needs two names"
        raise UsageError(f"--shapes {text}: {problem}; give DRAFT:TARGET of {', '.join(known)}")
    return names[0], names[1]


def named_config(name: str, role: str) -> PretrainedConfig:
    """The configuration of a name in `--shapes`; for `tiny` the bundled model of the role, "draft" or "target"."""
    from transformers import AutoConfig

    if name == TINY:
        config = AutoConfig.from_pretrained(model_source(f"{BUNDLED}{role}"))
    else:
        config = AutoConfig.for_model(**published_shapes()[name])
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

    avoid_cudnn(torch.device(device).type)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=dtype)
    return LoadedModel(f"random {name}", model.eval(), tokenizer, CONTEXT, frozenset())
