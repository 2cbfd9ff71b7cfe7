"""The checks of `doctor`: the installation, the machine, and whether a pair fits."""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil

from specprefill_cli import __version__
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loaded import ModelOutline
    from specprefill_cli.models.machine.placement import Placement
    from specprefill_cli.prompting import Template

GIBIBYTE = 2**30
# Default prompt length, in tokens, of the memory estimate.
DEFAULT_TOKENS = 8_192


class State(StrEnum):
    """`no`: not possible and not needed; `broken`: needed, so it must be repaired."""

    OK = "ok"
    LIMITED = "limited"
    NO = "no"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    """A finding: the name of the check, its state, and a line with cause and remedy."""

    name: str
    state: State
    detail: str


def diagnose(settings: Settings, tokens: int) -> list[Check]:
    """Run all checks, with memory for a prompt of `tokens` tokens. A check that raises becomes a finding."""
    findings: list[Check] = []
    checks: dict[str, Callable[[], Iterable[Check]]] = {
        "versions": check_versions,
        "devices": list_devices,
        "pair": partial(check_chosen_pair, settings, tokens),
        "recommended": recommend_pair,
    }
    for name, check in checks.items():
        try:
            findings += check()
        except Exception as error:
            # A broken installation can fail in any way.
            kind = "" if isinstance(error, SpecprefillError) else f"{type(error).__name__}: "
            findings.append(Check(name, State.BROKEN, f"{kind}{error}"))
    return findings


def check_versions() -> Iterator[Check]:
    """List the versions of Python, specprefill, and the libraries that run the models."""
    yield Check("python", State.OK, f"{platform.python_version()} on {platform.platform()}")
    yield Check("specprefill", State.OK, __version__)
    for name in ("torch", "transformers"):
        yield Check(name, State.OK, version(name))


def list_devices() -> Iterator[Check]:
    """List the CPU and the GPUs, with their memory."""
    import torch

    memory = psutil.virtual_memory()
    memory_text = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} memory available"
    yield Check("cpu", State.OK, f"{torch.get_num_threads()} threads, {memory_text}")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            yield Check(f"cuda:{number}", State.OK, f"{name}, {format_bytes(free)} of {format_bytes(total)} free")
    else:
        yield Check("gpu", State.NO, "none that torch can use; models run on the CPU")


def recommend_pair() -> Iterator[Check]:
    """Recommend a pair for this machine."""
    import torch

    from specprefill_cli.models.machine.recommendation import recommend

    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    gpu_memory = sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)
    yield Check("recommended", State.OK, recommend(psutil.virtual_memory().available, gpu_memory))


def check_chosen_pair(settings: Settings, tokens: int) -> Iterator[Check]:
    """Check a pair's data type, the memory that it needs, and what works with it; download no weights."""
    from specprefill_cli.models.loading import load_outline
    from specprefill_cli.models.machine.memory_plan import cache_bytes, weight_bytes
    from specprefill_cli.models.machine.placement import choose_dtype, choose_placement, stored_placement
    from specprefill_cli.models.machine.quantization import NONE, check_quantization
    from specprefill_cli.models.machine.recommendation import GPU_BYTES, PACKED_BYTES, WHOLE_BYTES, weights_of
    from specprefill_cli.models.sources.hub import ModelNotHere, may_download
    from specprefill_cli.models.sources.pairs import chosen_pair
    from specprefill_cli.models.sources.refs import Kind, ModelRef
    from specprefill_cli.models.sources.tokenizers import agreed_tokenizer
    from specprefill_cli.prompting import load_template

    pair = chosen_pair(settings)
    placement = choose_placement(settings.devices)
    check_quantization(settings.quantization, placement.device_type, placement.shards)
    placement = stored_placement(placement, settings.quantization, pair.adapter)
    template = load_template(settings.prompt or pair.prompt)
    needed_bytes, outlines = 0, []
    for role, name in (("draft", pair.draft), ("target", pair.target)):
        ref = ModelRef(name, placement.packed)
        conversion = ref.conversion if ref.file is not None else None
        try:
            is_missing = ref.kind is Kind.HUB_FILE and may_download(name, settings.offline)
            if is_missing or (conversion is not None and not conversion.done):
                todo = "downloaded" if is_missing else "converted"
                yield Check(f"{role} {name}", State.NO, f"not {todo} yet: the first run does that")
                size = GPU_BYTES if placement.gpus else PACKED_BYTES if placement.packed else WHOLE_BYTES
                if weights := weights_of(pair):
                    yield compare_memory(f"pair {pair.name}, roughly", int(weights * size), placement)
                return
            outline = load_outline(name, placement, settings.offline)
        except ModelNotHere as error:
            yield Check(f"{role} {name}", State.BROKEN, str(error))
            return
        outlines.append(outline)
        dtype = choose_dtype(settings.dtype, placement, outline.config.get_text_config())
        # On a CPU a checkpoint is loaded whole before it is quantised.
        is_quantized = role == "target" and settings.quantization != AUTO and placement.device_type == "cuda"
        quantization = settings.quantization if is_quantized else NONE
        weights, cache = weight_bytes(outline.config, dtype, quantization), cache_bytes(outline.config, tokens, dtype)
        needed_bytes += weights + cache
        stored_as = str(dtype).removeprefix("torch.") + ("" if quantization == NONE else f" and {quantization}")
        detail = f"{stored_as}: weights {format_bytes(weights)}, KV of {tokens:,} tokens {format_bytes(cache)}"
        yield Check(f"{role} {name}", State.OK, detail)
    yield compare_memory(f"pair {pair.name}", needed_bytes, placement)
    draft, target = outlines
    target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    yield from check_pair(draft, target, template)


def check_pair(draft: "ModelOutline", target: "ModelOutline", template: "Template") -> Iterator[Check]:
    """Check a pair's tokenizers, context and prompt."""
    from specprefill_cli.models.sources.tokenizers import fingerprint
    from specprefill_cli.prompting import encode_prompt

    if fingerprint(draft.tokenizer) == fingerprint(target.tokenizer):
        yield Check("tokenizer", State.OK, "the same for both")
    else:
        yield Check("tokenizer", State.LIMITED, "two different ones: no draft KV, and no tokens proposed by the draft")
    pair_context = min(draft.context, target.context)
    detail = f"prompt and answer up to {pair_context:,} tokens (draft {draft.context:,}, target {target.context:,})"
    if draft.context < target.context:
        yield Check("context", State.LIMITED, f"{detail}; longer documents are read in parts, by `select`")
    else:
        yield Check("context", State.OK, detail)
    try:
        encode_prompt(template, "document", "question", target.tokenizer)
        yield Check("prompt", State.OK, f"template '{template.name}'")
    except SpecprefillError as error:
        yield Check("prompt", State.BROKEN, str(error))


def compare_memory(name: str, needed_bytes: int, placement: "Placement") -> Check:
    """Check whether draft and target fit the memory; activations are not counted."""
    import torch

    on_gpus = [torch.cuda.mem_get_info(gpu)[0] for gpu in placement.gpus]
    free_bytes = sum(on_gpus) if on_gpus else psutil.virtual_memory().available
    needed = f"needs {format_bytes(needed_bytes)} on {placement.device_type} and room for activations"
    detail = f"{needed}, {format_bytes(free_bytes)} are free"
    if needed_bytes > free_bytes:
        return Check(name, State.BROKEN, f"{detail}: use a smaller pair, --dtype bfloat16, or more --devices")
    return Check(name, State.OK, detail)


def format_bytes(size: int) -> str:
    """Format a number of bytes in GiB, a small number in MiB."""
    return f"{size / GIBIBYTE:,.1f} GiB" if size >= GIBIBYTE / 10 else f"{size / 2**20:,.0f} MiB"
