"""The registry of pairs: `tiny`, and well-known Hugging Face models in the sizes that people run."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specprefill_cli.errors import UsageError
from specprefill_cli.files import BUNDLED_FOLDER, SMOLLM2_FOLDER, own_path
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.refs import BUNDLED, Kind, ModelRef
from specprefill_cli.settings import AUTO, Settings

TINY_PROMPT = "tiny"
SMOLLM2 = "smollm2"
CHOOSER = f"{BUNDLED}draft"
# Drafts of several pairs, the beginning of two names, and the form of three.
QWEN, LLAMA = "Qwen/Qwen2.5-0.5B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
MINISTRAL, CODER = "mistralai/Ministral-3-3B-Instruct-2512-BF16", "Qwen/Qwen2.5-Coder"
GEMMA = "google/gemma-3-{}b-it"
# Free memory that a GGUF file's model needs, in bytes for each byte of the file: in int8, or in float32 where int8 is slow.
MEMORY_OF_FILE = 4 if platform.machine().lower() in ("x86_64", "amd64") else 7
# Values of settings that need a draft with the target's tokenizer, or a pretrained draft.
OWN_DRAFT = {"mode": ("draft-kv", "hybrid"), "scorer": ("question", "paper"), "proposer": ("draft",)}
FOLDER_VARIABLE = "SPECPREFILL_CALIBRATION"
HEADS_FILE = "heads.json"


@dataclass(frozen=True)
class Pair:
    """A named pair: hub ids or folders of draft and target, and the prompt template that suits the target.

    adapter: folder or hub id of a LoRA adapter that is merged into the target's weights
    gguf: what the names of the repositories with its GGUF files end with; a machine without a GPU takes these
    """

    name: str
    draft: str
    target: str
    prompt: str = "ask"
    note: str = ""
    adapter: str | None = None
    gguf: str | None = None

    @property
    def draft_prompt(self) -> str | None:
        """The template that suits the draft, where its tokens are not the target's; None: the target's."""
        return TINY_PROMPT if ModelRef(self.draft).kind is Kind.BUNDLED else None


PAIRS: Mapping[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair("tiny", CHOOSER, f"{BUNDLED}target", TINY_PROMPT, "bundled; small, runs anywhere"),
        Pair(SMOLLM2, CHOOSER, smollm2.TARGET, "smollm2", "for a CPU; answers in a few words"),
        Pair(
            "smollm2-full", CHOOSER, smollm2.BASE, "smollm2-full", "the same without an adapter: answers in sentences"
        ),
        Pair(
            "qwen2.5-coder-1.5b", f"{CODER}-0.5B-Instruct-GGUF", f"{CODER}-1.5B-Instruct-GGUF", note="1.1 GB; for a CPU"
        ),
        *(Pair(f"qwen2.5-{size}b", QWEN, f"Qwen/Qwen2.5-{size}B-Instruct", gguf="-GGUF") for size in (1.5, 3, 7)),
        *(Pair(f"qwen2.5-{size}b", QWEN, f"Qwen/Qwen2.5-{size}B-Instruct") for size in (14, 32)),
        Pair("qwen2.5-72b", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-72B-Instruct"),
        *(Pair(f"qwen3-{size}b", "Qwen/Qwen3-0.6B", f"Qwen/Qwen3-{size}B") for size in (4, 8, 14, 32)),
        Pair("llama-3.2-3b", LLAMA, "meta-llama/Llama-3.2-3B-Instruct", note="gated"),
        Pair("llama-3.1-8b", LLAMA, "meta-llama/Llama-3.1-8B-Instruct", note="gated"),
        Pair("llama-3.3-70b", LLAMA, "meta-llama/Llama-3.3-70B-Instruct", note="gated"),
        *(Pair(f"gemma-3-{size}b", GEMMA.format(1), GEMMA.format(size), note="gated") for size in (4, 12, 27)),
        Pair("ministral-8b", MINISTRAL, "mistralai/Ministral-3-8B-Instruct-2512-BF16"),
        Pair("mistral-small-24b", MINISTRAL, "mistralai/Mistral-Small-3.2-24B-Instruct-2506"),
        Pair("phi-4", "microsoft/Phi-4-mini-instruct", "microsoft/phi-4", note="two tokenizers: mode select only"),
    )
}


def default_pair() -> str:
    """The name of the pair `auto`: the largest whose GGUF file is here and fits the memory, else `smollm2` or `tiny`."""
    import psutil

    pairs = filter(runs_from_gguf, map(on_this_machine, PAIRS.values()))
    files = ((pair.name, ModelRef(pair.target).file) for pair in pairs)
    sizes = {name: file.stat().st_size for name, file in files if file is not None}
    room = psutil.virtual_memory().available / MEMORY_OF_FILE
    fallback = SMOLLM2 if smollm2.package_file() else "tiny"
    return max((name for name in sizes if sizes[name] <= room), key=sizes.__getitem__, default=fallback)


def runs_from_gguf(pair: Pair) -> bool:
    """Whether a pair's target is a GGUF file of the hub."""
    return ModelRef(pair.target).kind is Kind.HUB_FILE


def on_this_machine(pair: Pair) -> Pair:
    """The pair as this machine should load it: from GGUF files where it has no GPU."""
    if pair.gguf is None or has_gpu():
        return pair
    return replace(pair, draft=pair.draft + pair.gguf, target=pair.target + pair.gguf)


def has_gpu() -> bool:
    """Whether the machine has an NVIDIA or AMD GPU, without the second that importing torch takes."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


def with_named_pair(settings: Settings) -> Settings:
    """The settings with the pair `auto` replaced by what it is here, so that other processes take the same pair."""
    return settings.varied(pair=default_pair()) if settings.pair == AUTO else settings


def find_pair(name: str, draft: str | None = None, target: str | None = None) -> Pair:
    """The named pair, with draft or target replaced where given. Raises UsageError for an unknown name."""
    if draft is not None and target is not None:
        return Pair("custom", draft, target)
    name = default_pair() if name == AUTO else name
    if name not in PAIRS:
        raise UsageError(f"pair '{name}': unknown; known are {', '.join(PAIRS)}, or give --draft and --target")
    pair = on_this_machine(PAIRS[name])
    if pair.target in (smollm2.TARGET, smollm2.BASE) and target is None and smollm2.package_file() is None:
        adapter = str(SMOLLM2_FOLDER) if pair.target == smollm2.TARGET else None
        pair = replace(pair, target=smollm2.HUB_ID, adapter=adapter)
    if target is not None:
        # A foreign target needs its own chat template; the named pair's prompt suits its own target alone.
        return Pair("custom", pair.draft, target)
    return pair if draft is None else replace(pair, name="custom", draft=draft)


def chosen_pair(settings: Settings) -> Pair:
    """The pair that the settings name, with their adapter. Raises UsageError for an unknown name.

    The bundled draft scores for a pair from the hub, unless a setting needs its own, or that has calibrated heads.
    """
    pair = find_pair(settings.pair, settings.draft, settings.target)
    is_from_hub = settings.draft is None and ModelRef(pair.draft).kind in (Kind.HUB, Kind.HUB_FILE)
    needs_own = any(getattr(settings, name) in values for name, values in OWN_DRAFT.items())
    if is_from_hub and not needs_own and not (draft_folder(pair.draft) / HEADS_FILE).is_file():
        pair = replace(pair, draft=CHOOSER)
    if settings.adapter is None:
        return pair
    target = smollm2.BASE if pair.target == smollm2.TARGET else pair.target
    return replace(pair, target=target, adapter=settings.adapter)


def draft_folder(draft: str) -> Path:
    """The folder of a draft's scoring heads, whatever the target. It need not exist."""
    return BUNDLED_FOLDER if ModelRef(draft).kind is Kind.BUNDLED else user_folder() / slug(draft)


def user_folder() -> Path:
    """$SPECPREFILL_CALIBRATION, or `calibration` in the platform's folder for application data."""
    return own_path(FOLDER_VARIABLE, "data", "calibration")


def slug(name: str) -> str:
    """A hub id or path as a file name: other characters than letters, digits, dots and dashes become underscores."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_")
