"""The checks of `doctor`: the installation, the machine, plugins, and whether a pair fits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.installation import install_command
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.models.loading import ModelOutline
    from specprefill_cli.models.placement import Placement
    from specprefill_cli.prompting import Template

GIBIBYTE = 2**30
# Default length of the prompt, in tokens, to count memory for.
DEFAULT_TOKENS = 8_192
DIFFERENT_TOKENIZERS = "draft and target have different tokenizers, so the target cannot use the draft's KV or tokens"


class State(StrEnum):
    """`no`: not possible, and not needed; `broken`: needed, and must be repaired."""

    OK = "ok"
    LIMITED = "limited"
    NO = "no"
    BROKEN = "broken"


@dataclass(frozen=True)
class Check:
    """A finding: the name of the check, its state, and one line with cause and remedy."""

    name: str
    state: State
    detail: str


def diagnose(settings: Settings, tokens: int) -> list[Check]:
    """Run all checks; an error in one is a finding itself and does not end the others.

    tokens: length of the prompt to count memory for
    """
    checks: dict[str, Callable[[], Iterator[Check]]] = {
        "versions": check_versions,
        "devices": list_devices,
        "plugins": list_plugins,
        "pair": lambda: check_chosen_pair(settings, tokens),
    }
    findings: list[Check] = []
    for name, check in checks.items():
        try:
            findings += check()
        except SpecprefillError as error:
            findings.append(Check(name, State.BROKEN, str(error)))
        except Exception as error:
            # A broken installation can fail in any way.
            findings.append(Check(name, State.BROKEN, f"{type(error).__name__}: {error}"))
    return findings


def check_versions() -> Iterator[Check]:
    """Python, and the packages that specprefill needs (office files included), against the tested ranges."""
    from packaging.requirements import Requirement

    yield Check("python", State.OK, f"{platform.python_version()} on {platform.platform()}")
    try:
        declared = [Requirement(text) for text in requires("specprefill") or ()]
    except PackageNotFoundError:
        yield Check("specprefill", State.LIMITED, "run from its sources, not installed: versions are not checked")
        return
    yield Check("specprefill", State.OK, version("specprefill"))
    for requirement in declared:
        name, specifier = requirement.name, str(requirement.specifier)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield check_package(name, specifier, State.BROKEN, install_command())
        elif requirement.marker.evaluate({"extra": "office"}):
            yield check_package(name, specifier, State.NO, f"to read these, {install_command('office')}")


def check_package(name: str, specifier: str, absent: State, remedy: str) -> Check:
    """Check an installed package against the tested range; `absent`: the state where it is not installed."""
    from packaging.specifiers import SpecifierSet

    try:
        installed = version(name)
    except PackageNotFoundError:
        return Check(name, absent, f"not installed; {remedy}")
    if SpecifierSet(specifier).contains(installed, prereleases=True):
        return Check(name, State.OK, installed)
    return Check(name, State.LIMITED, f"{installed} is outside the tested range {specifier}")


def list_devices() -> Iterator[Check]:
    """The CPU and the GPUs, with their memory."""
    import torch

    available, total = main_memory()
    memory = f"{format_bytes(available)} of {format_bytes(total)} memory available"
    yield Check("cpu", State.OK, f"{torch.get_num_threads()} threads, {memory}")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            name = torch.cuda.get_device_name(number)
            yield Check(f"cuda:{number}", State.OK, f"{name}, {format_bytes(free)} of {format_bytes(total)} free")
    elif torch.backends.mps.is_available():
        yield Check("mps", State.OK, "Apple GPU; it shares the main memory")
    else:
        yield Check("gpu", State.NO, "none that torch can use; models run on the CPU")


def list_plugins() -> Iterator[Check]:
    """The modes and scorers that other packages add, and whether they can be loaded."""
    from specprefill_cli.prefill.registry import MODES, SCORERS

    for registry in (MODES, SCORERS):
        for entry, fault in registry.check_plugins():
            state = State.OK if fault is None else State.LIMITED
            yield Check(f"{registry.noun} {entry.name}", state, fault or entry.value)


def check_chosen_pair(settings: Settings, tokens: int) -> Iterator[Check]:
    """The dtype that `auto` takes, the memory that both models need, and what works with them. No weights are downloaded."""
    from specprefill_cli.models import smollm2
    from specprefill_cli.models.hub import ModelNotHere
    from specprefill_cli.models.loading import load_outline
    from specprefill_cli.models.memory_plan import cache_bytes, weight_bytes
    from specprefill_cli.models.pairs import chosen_pair
    from specprefill_cli.models.placement import choose_dtype, choose_placement
    from specprefill_cli.models.quantization import NONE, check_quantization
    from specprefill_cli.models.refs import Kind, ModelRef
    from specprefill_cli.models.tokenizers import agreed_tokenizer
    from specprefill_cli.prompting import load_template

    pair = chosen_pair(settings)
    placement = choose_placement(settings.devices)
    check_quantization(settings.quantization, placement)
    template = load_template(settings.prompt or pair.prompt)
    needed, outlines = 0, []
    for role, name in (("draft", pair.draft), ("target", pair.target)):
        if ModelRef(name).kind is Kind.PACKAGED and not smollm2.conversion_of(name).done:
            yield Check(f"{role} {name}", State.NO, "not converted yet: the first run does that")
            return
        try:
            outline = load_outline(name, placement, settings.offline)
        except ModelNotHere as error:
            yield Check(f"{role} {name}", State.NO, str(error))
            return
        outlines.append(outline)
        dtype = choose_dtype(settings.dtype, placement, outline.config.get_text_config())
        quantization = settings.quantization if role == "target" else NONE
        weights, cache = weight_bytes(outline.config, dtype, quantization), cache_bytes(outline.config, tokens, dtype)
        needed += weights + cache
        stored_as = str(dtype).removeprefix("torch.") + ("" if quantization == NONE else f" and {quantization}")
        detail = f"{stored_as}: weights {format_bytes(weights)}, KV of {tokens:,} tokens {format_bytes(cache)}"
        yield Check(f"{role} {name}", State.OK, detail)
    yield compare_memory(f"pair {pair.name}", needed, placement)
    draft, target = outlines
    target.tokenizer = agreed_tokenizer(pair.target, target.tokenizer, draft.tokenizer)
    draft_template = load_template(pair.draft_prompt) if pair.draft_prompt is not None else template
    yield from check_pair(draft, target, template, draft_template)


def check_pair(draft: ModelOutline, target: ModelOutline, template: Template, draft_template: Template) -> list[Check]:
    """Check a pair's models, tokenizers, modes, context, windows and prompts.

    draft_template: of the draft's prompt where its tokenizer is not the target's
    """
    from specprefill_cli.models.adapter import rotation_depends_on_length

    same = draft.fingerprint == target.fingerprint
    length_dependent = [model for model in (draft, target) if rotation_depends_on_length(model.config)]
    shared = (State.OK, "possible: one tokenizer") if same else (State.NO, DIFFERENT_TOKENIZERS)
    draft_kv = shared
    if target in length_dependent:
        reason = "rotary embedding depends on the length of the prompt, and mapped keys cannot follow it"
        draft_kv = (State.NO, f"{target.name}'s {reason}")
    return [
        check_model_class("draft", draft),
        check_model_class("target", target),
        Check("tokenizer", State.OK if same else State.LIMITED, "the same for both" if same else "two different ones"),
        check_select(draft),
        Check("draft-kv", *draft_kv),
        Check("speculative decoding", *shared),
        check_context(draft, target),
        # `longrope` and `dynamic` have factors that depend on the number of tokens read at once.
        *(
            Check(
                "rotary embedding",
                State.LIMITED,
                f"{model.name}: it depends on the length of the prompt; one pass reads all of it",
            )
            for model in length_dependent
        ),
        check_prompt("prompt", template, target),
        *(() if same else (check_prompt("draft's prompt", draft_template, draft),)),
    ]


def check_model_class(role: str, outline: ModelOutline) -> Check:
    """Whether the model's attention can be replaced by ours."""
    from specprefill_cli.models.hub import model_class

    text = outline.config.get_text_config()
    cls = model_class(outline.config)
    if cls is None or not cls.is_backend_compatible():
        return Check(role, State.BROKEN, f"{outline.name}: {text.model_type} computes attention in its own way")
    detail = f"{outline.name}: {text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}"
    return Check(role, State.OK, detail)


def check_select(draft: ModelOutline) -> Check:
    """Whether a layer of the draft sees the whole prompt, however long."""
    from specprefill_cli.models.adapter import window_layers

    windows = window_layers(draft.config)
    if None in windows:
        detail = "the target reads the chunks that the draft selects; their tokenizers may differ"
        return Check("select", State.OK, detail)
    longest = max(window for window in windows if window is not None)
    detail = (
        f"only for prompts up to {longest:,} tokens: all of the draft's layers have a window; longer ones need "
        "--scorer lexical or another --draft"
    )
    return Check("select", State.LIMITED, detail)


def check_context(draft: ModelOutline, target: ModelOutline) -> Check:
    """How many tokens fit both models."""
    shorter = min(draft.context, target.context)
    detail = f"prompt and answer up to {shorter:,} tokens (draft {draft.context:,}, target {target.context:,})"
    if draft.context < target.context:
        return Check("context", State.LIMITED, f"{detail}; longer documents are read in windows, by `select`")
    return Check("context", State.OK, detail)


def check_prompt(name: str, template: Template, outline: ModelOutline) -> Check:
    """Whether a template works with a model's tokenizer."""
    from specprefill_cli.prompting import render

    try:
        render(template, "document", "question", outline.tokenizer)
    except SpecprefillError as error:
        return Check(name, State.BROKEN, str(error))
    return Check(name, State.OK, f"template '{template.name}'")


def compare_memory(name: str, needed: int, placement: Placement) -> Check:
    """Whether both models fit; activations are not counted."""
    import torch

    gpus = placement.gpus
    free = sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus) if gpus else main_memory()[0]
    device = placement.device_type
    detail = f"needs {format_bytes(needed)} on {device} and room for activations, {format_bytes(free)} are free"
    in_main_memory = (placement.max_memory or {}).get("cpu", 0)
    if free < needed <= free + in_main_memory:
        return Check(name, State.LIMITED, f"{detail}: the rest stays in slow main memory; use a smaller pair")
    if needed > free:
        return Check(name, State.BROKEN, f"{detail}: use a smaller pair, --dtype bfloat16, or more --devices")
    return Check(name, State.OK, detail)


def main_memory() -> tuple[int, int]:
    """Return the available and the total memory of the machine, in bytes."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total


def format_bytes(size: int) -> str:
    """Write a number of bytes in GiB, or small ones in MiB."""
    return f"{size / GIBIBYTE:,.1f} GiB" if size >= GIBIBYTE / 10 else f"{size / 2**20:,.0f} MiB"
