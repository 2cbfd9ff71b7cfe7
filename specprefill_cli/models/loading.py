"""Loads a pair, or a model's outline without weights, from a folder or the hub. Refuses models that are not supported."""

from pathlib import Path

from transformers import AutoConfig, TokenizersBackend

from specprefill_cli.distributed import ALONE, Ranks
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loaded import LoadedModel, LoadedPair, ModelOutline
from specprefill_cli.models.machine.memory_plan import cache_bytes, weight_bytes
from specprefill_cli.models.machine.placement import (
    Placement,
    check_divisible,
    check_memory,
    choose_dtype,
    draft_placement,
    how_to_place,
    prefer_one_gpu,
    stored_placement,
)
from specprefill_cli.models.machine.quantization import NONE, check_quantization, checkpoint_method, quantization_config
from specprefill_cli.models.running.attention import ATTENTION, avoid_cudnn
from specprefill_cli.models.running.int8 import STORED, load_written, quantize_on_cpu
from specprefill_cli.models.running.supported import check_config, check_model, model_class
from specprefill_cli.models.sources.hub import adapter_folder, load_errors, quiet_library
from specprefill_cli.models.sources.lora import merge_adapter, read_adapter
from specprefill_cli.models.sources.pairs import Pair
from specprefill_cli.models.sources.refs import Kind, ModelRef
from specprefill_cli.models.sources.tokenizers import agreed_tokenizer
from specprefill_cli.settings import AUTO, Settings

# Tokens that end a turn: a GGUF file may name only the one that ends a text.
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")


def load_pair(
    pair: Pair, placement: Placement, settings: Settings, with_draft: bool, with_target: bool, ranks: Ranks = ALONE
) -> LoadedPair:
    """Load target and draft of a pair and check them; without `with_target`, only the target's outline.

    Only the target's weights are quantised: the draft is small. ranks: the processes that share the target

    Raises SpecprefillError when a model cannot be loaded or is not supported.
    """
    dtype, offline, quantization = settings.dtype, settings.offline, settings.quantization
    placement = stored_placement(placement, quantization, pair.adapter)
    target: LoadedModel | ModelOutline
    if with_target:
        check_quantization(quantization, placement.device_type, placement.shards)
        # Read the adapter first: a model may take minutes to load.
        adapter = read_adapter(adapter_folder(pair.adapter, offline), pair.adapter) if pair.adapter else None
        on_gpu = quantization if placement.device_type == "cuda" and quantization != AUTO else NONE
        target = load_model(pair.target, placement, dtype, offline, on_gpu)
        if adapter is not None:
            merge_adapter(target.model, adapter)
        if quantization == "int8" and placement.device_type == "cpu" and checkpoint_method(target.config) is None:
            quantize_on_cpu(target.model)
    else:
        target = load_outline(pair.target, placement, offline)
    draft = None
    if with_draft:
        draft = load_model(pair.draft, draft_placement(placement), dtype, offline)
        target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    return LoadedPair(pair, target, draft, ranks)


def load_outline(name: str, placement: Placement, offline: bool) -> ModelOutline:
    """Load a language model's configuration and tokenizer. Raises SpecprefillError if missing or unsupported."""
    with load_errors(name, offline, placement.packed) as source:
        config = AutoConfig.from_pretrained(**source)
        check_config(config, name)
        # The checkpoint's tokenizer.json: a model's class may split in another way, or give no offsets.
        tokenizer = TokenizersBackend.from_pretrained(**source)
    return ModelOutline(name, config, tokenizer, placement.device_type)


def load_model(name: str, placement: Placement, dtype: str, offline: bool, quantization: str = NONE) -> LoadedModel:
    """Load a causal language model with specprefill's attention, from a folder, the hub (safetensors only) or a GGUF file.

    quantization: NONE or a key of `BYTES_PER_WEIGHT`; a quantised checkpoint loads as it is

    Raises SpecprefillError when it cannot be loaded, is not supported, does not fit this machine, or lacks weights.
    """
    outline = load_outline(name, placement, offline)
    check_divisible(placement, outline.config, name)
    chosen_dtype = choose_dtype(dtype, placement, outline.config.get_text_config())
    quantized = quantization_config(quantization, outline.config, name, chosen_dtype)
    quiet_library()
    with load_errors(name, offline, placement.packed) as source:
        check_memory(outline.config, name, placement, chosen_dtype, quantization)
        if placement.device_map == "auto":
            cache = cache_bytes(outline.config, outline.context, chosen_dtype)
            placement = prefer_one_gpu(placement, weight_bytes(outline.config, chosen_dtype, quantization) + cache)
        avoid_cudnn(placement.device_type)
        is_own = ModelRef(name).kind not in (Kind.FOLDER, Kind.HUB)
        is_packed = checkpoint_method(outline.config) == STORED["quant_method"]
        if is_packed or (is_own and placement.device_type == "cpu" and placement.shards == 1):
            model, missing = load_written(Path(source["pretrained_model_name_or_path"]), outline.config, chosen_dtype)
        else:
            model, report = model_class(outline.config).from_pretrained(
                **source,
                dtype=chosen_dtype,
                **({} if quantized is None else {"quantization_config": quantized}),
                **how_to_place(placement),
                attn_implementation=ATTENTION,
                use_safetensors=True,
                output_loading_info=True,
            )
            # transformers has initialised them at random.
            missing = sorted(report["missing_keys"])
    if missing:
        cause = f"the checkpoint lacks {len(missing)} weights, such as {missing[0]}"
        raise SpecprefillError(f"{name}: {cause}; download or export it again")
    check_model(model, name)
    configured = model.generation_config.eos_token_id
    ids = [*(configured if isinstance(configured, list) else [configured]), outline.tokenizer.eos_token_id]
    ids += map(outline.tokenizer.get_added_vocab().get, TURN_ENDS)
    stops = frozenset(number for number in ids if number is not None)
    return LoadedModel(name, model.eval(), outline.tokenizer, outline.context, stops)
