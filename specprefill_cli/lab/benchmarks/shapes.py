"""Models of published sizes with random weights, because the time of a prefill does not depend on the weights' values.

shapes.json holds the sizes from each model's published `config.json`.
"""

from __future__ import annotations

import json
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from specprefill_cli.answering.session import Session
from specprefill_cli.distributed import Ranks, Shard
from specprefill_cli.distributed.launch import ranks_for
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.machine.memory_plan import cache_bytes, weight_bytes
from specprefill_cli.models.machine.placement import (
    Placement,
    check_divisible,
    check_memory,
    choose_dtype,
    choose_placement,
    draft_placement,
    how_to_place,
    place_of_rank,
    prefer_one_gpu,
)
from specprefill_cli.models.running.attention import ATTENTION, avoid_cudnn
from specprefill_cli.models.running.supported import model_class
from specprefill_cli.models.sources.hub import quiet_library
from specprefill_cli.models.sources.pairs import Pair
from specprefill_cli.models.sources.refs import BUNDLED, ModelRef
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prompting import load_template
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

CONTEXT = 1 << 20
# A model goes on a single GPU if the KV of this many tokens fits beside its weights.
LONGEST = 131_072
# The bundled pair's sizes, without its limit of 16,384 tokens.
TINY = "tiny"


@cache
def published_shapes() -> dict[str, dict[str, Any]]:
    """The sizes of published models by name, as arguments of transformers' configurations."""
    return json.loads((resources.files(__package__) / "shapes.json").read_text(encoding="utf-8"))


def shape_pair(shapes: str) -> tuple[str, str]:
    """Parse `DRAFT:TARGET` into the names of draft and target. Raises UsageError for anything else."""
    names = [part.strip().lower() for part in shapes.split(":")]
    known_names = (TINY, *published_shapes())
    unknown = [name for name in names if name not in known_names]
    if len(names) != 2 or unknown:
        problem = f"'{unknown[0]}' is unknown" if unknown else "needs two names"
        raise UsageError(f"--shapes {shapes}: {problem}; give DRAFT:TARGET of {', '.join(known_names)}")
    return names[0], names[1]


def named_config(name: str, role: str) -> PretrainedConfig:
    """The configuration of a name in `--shapes`; for `tiny` the bundled model of the role, "draft" or "target"."""
    from transformers import AutoConfig

    if name == TINY:
        config = AutoConfig.from_pretrained(**ModelRef(f"{BUNDLED}{role}").source())
    else:
        config = AutoConfig.for_model(**published_shapes()[name])
    config.max_position_embeddings = CONTEXT
    return config


def shaped_session(shapes: str, settings: Settings) -> Session:
    """Open a session with the pair `DRAFT:TARGET`, random weights and the bundled tokenizer, placed like any other pair.

    Raises SpecprefillError if the devices have too little memory or cannot divide the target.
    """
    shape_pair(shapes)
    ranks = ranks_for(settings.tensor_parallel)
    with ranks.run_on_all_ranks(partial(open_shard, shapes, settings)):
        return open_shapes(shapes, settings, ranks)


def open_shard(shapes: str, settings: Settings, shard: Shard) -> None:
    """On another rank: open its part of `shaped_session`."""
    shard.close()
    shard.session = open_shapes(shapes, settings, shard.ranks)


def open_shapes(shapes: str, settings: Settings, ranks: Ranks) -> Session:
    """Open this rank's part of `shaped_session`."""
    import torch
    from transformers import AutoTokenizer

    draft_name, target_name = shape_pair(shapes)
    target_config = named_config(target_name, "target")
    placement = choose_placement(settings.devices) if ranks.size == 1 else place_of_rank(settings.devices, ranks)
    dtype = choose_dtype(settings.dtype, placement, target_config)
    make = partial(random_model, tokenizer=AutoTokenizer.from_pretrained(**ModelRef("tiny:target").source()))
    try:
        check_memory(target_config, f"--shapes {shapes}, target", placement, dtype)
        target = make(f"random {target_name} target", target_config, placement, dtype)
        placement = draft_placement(placement)
        draft_config = named_config(draft_name, "draft")
        check_memory(draft_config, f"--shapes {shapes}, draft", placement, dtype)
        draft = make(f"random {draft_name} draft", draft_config, placement, dtype)
    except torch.OutOfMemoryError as error:
        raise SpecprefillError(
            f"--shapes {shapes}: does not fit its devices; use smaller shapes, or --dtype bfloat16"
        ) from error
    template = load_template(settings.prompt or "tiny")
    pair = CalibratedPair(Pair(shapes, draft_name, target_name, "tiny"), target, draft, ranks)
    return Session(pair=pair, template=template)


def random_model(
    name: str, config: PretrainedConfig, placement: Placement, dtype: torch.dtype, *, tokenizer: PreTrainedTokenizerBase
) -> LoadedModel:
    """Make a model with random weights and without stop tokens."""
    import torch

    check_divisible(placement, config, name)
    needed_bytes = weight_bytes(config, dtype) + cache_bytes(config, LONGEST, dtype)
    avoid_cudnn(placement.device_type)
    torch.manual_seed(0)
    # transformers initialises missing weights on their devices; an empty state dict lacks all of them.
    placement_options: dict[str, Any] = {"state_dict": {}, **how_to_place(prefer_one_gpu(placement, needed_bytes))}
    quiet_library()
    model: Any = model_class(config)
    model = model.from_pretrained(None, config=config, dtype=dtype, attn_implementation=ATTENTION, **placement_options)
    return LoadedModel(name, model.eval(), tokenizer, CONTEXT, frozenset())
