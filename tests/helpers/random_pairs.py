"""Pairs of small random models with random calibration data. They test mechanics, not quality."""

from dataclasses import replace

import torch

from specprefill_cli.draft_kv.projection import (
    KvCalibration,
    KvMap,
    LayerFit,
    pair_calibration,
    pair_identity,
    set_calibration,
)
from specprefill_cli.lab.calibration.files import save_heads, save_maps
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.loading import load_outline
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.running.cache import layer_count
from specprefill_cli.models.sources.pairs import Pair, draft_folder
from specprefill_cli.models.sources.tokenizers import fingerprint
from specprefill_cli.prefill.calibration import CalibratedPair, Head, ScoringHeads, calibration_folder, model_identity
from tests.helpers.architectures import VOCABULARY, build_model


def random_calibrated_pair(name, tokenizer, draft_sizes=None, target_sizes=None):
    """Build a pair of one architecture, with the bundled tokenizer. draft_sizes, target_sizes: changes to their sizes."""
    stop = frozenset({VOCABULARY - 2})
    models = [
        LoadedModel(f"random-{name}-{seed}", build_model(name, seed=seed, **sizes), tokenizer, 4_096, stop)
        for seed, sizes in ((1, target_sizes or {}), (2, draft_sizes or {}))
    ]
    # Layer 1 sees the whole document on every architecture but Mistral.
    heads = ScoringHeads(
        heads=(Head(1, 0, 1.0), Head(1, models[1].config.num_attention_heads - 1, 0.5)),
        auto_mass=0.7,
        default=False,
        evidence={},
        **model_identity(models[1]),
    )
    pair = CalibratedPair(Pair("random", "draft", "target"), models[0], models[1], scoring_heads=heads)
    set_calibration(pair, KvCalibration(pair_identity(pair), 0, random_map(pair)))
    return pair


def random_map(pair):
    """Build a map of draft KV with random weights. It maps badly, but all code around it must work."""
    generator = torch.Generator().manual_seed(7)
    size = pair.draft.model.config.hidden_size
    fits, weights, cost = [], {}, cost_of(pair.target)
    for layer in range(1, layer_count(pair.target.model)):
        fits.append(LayerFit(layer, (1, 2), 1e-3, 1.0, 1.0))
        weights[layer] = (
            torch.randn(2 * size + 1, 2 * cost.key_value_heads * cost.head_size, generator=generator) / size**0.5
        )
    return KvMap(tuple(fits), weights)


def save_pair(pair, folder):
    """Write models and calibration, to load with `--draft FOLDER/draft --target FOLDER/target`."""
    named = Pair("custom", str(folder / "draft"), str(folder / "target"))
    for loaded, path in ((pair.draft, named.draft), (pair.target, named.target)):
        loaded.model.save_pretrained(path)
        loaded.tokenizer.save_pretrained(path)
    # transformers may load a tokenizer differently for another architecture.
    tokenizer = fingerprint(load_outline(named.draft, Placement(None), offline=True).tokenizer)
    identity = {**pair_calibration(pair).identity, "tokenizer": tokenizer}
    save_heads(replace(pair.scoring_heads, tokenizer=tokenizer), draft_folder(named.draft))
    save_maps(replace(pair_calibration(pair), identity=identity), calibration_folder(named))
