"""Every option is declared once: as a field of `Settings` with its help, range and choices."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from specprefill_cli.declarations import ENVIRONMENT_PREFIX, Setting, setting
from specprefill_cli.errors import UsageError
from specprefill_cli.files import own_path

AUTO = "auto"
OFF = "off"
NEVER, WARN, STRICT = "never", "warn", "strict"
# Panels of `--help`.
DOCUMENTS, MODELS, PREFILL, DECODING, OUTPUT, CACHE = "Documents", "Models", "Prefill", "Decoding", "Output", "Cache"
# Settings that only the lab's commands have as options.
TUNING = "Tuning"

_models, _documents, _cache = (partial(setting, panel, per_question=False) for panel in (MODELS, DOCUMENTS, CACHE))
_prefill, _tuning, _decoding, _output = (partial(setting, panel) for panel in (PREFILL, TUNING, DECODING, OUTPUT))


@dataclass(frozen=True)
class Settings:
    """How to load, prefill and answer. Raises UsageError for a value out of range."""

    pair: str = _models(
        AUTO, "Pair of draft and target (`specprefill pairs` lists them); auto: the best GGUF pair here, else smollm2"
    )
    draft: str | None = _models(None, "Hub id, folder or GGUF file of the draft", unset="the pair's")
    target: str | None = _models(
        None,
        "Hub id, folder or .gguf file of the target model, or URL#MODEL of an OpenAI-compatible server",
        unset="the pair's",
    )
    adapter: str | None = _models(
        None, "Folder or hub id of a LoRA adapter for the target, in PEFT's format", unset="the pair's", rare=True
    )
    devices: str = _models(AUTO, "Devices: auto, cpu, or a list such as cuda:0,cuda:1")
    tensor_parallel: int = _models(
        1, "Divide each layer of the target among this many GPUs (or CPU processes)", minimum=1, rare=True
    )
    dtype: str = _models(AUTO, "Data type of the weights", choices=(AUTO, "float32", "bfloat16", "float16"))
    quantization: str = _models("auto", "Quantize the target's weights", choices=("auto", "none", "int8", "nf4"))
    offline: bool = _models(False, "Download nothing: use only models on this machine")
    mode: str = _prefill(AUTO, "How the target prefills the documents")
    scorer: str = _prefill(AUTO, "Method that scores the document's tokens")
    keep: float | None = _prefill(
        None, "Keep ratio: share of prompt tokens that the target computes, 0 to 1", above=0, maximum=1, words=(AUTO,)
    )
    look_ahead: int = _tuning(8, "Tokens that the draft decodes before scoring", minimum=0)
    chunk_size: int = _tuning(32, "Document tokens in a chunk, the unit of selection", minimum=1)
    prefill_chunk: str | int = _tuning(
        AUTO, "Tokens in a forward pass of prefill; auto fits them to the free memory", minimum=16, words=(AUTO,)
    )
    draft_window: str | int = _tuning(
        AUTO, "Previous tokens that a document token sees in the draft", minimum=1, words=(OFF, AUTO)
    )
    positions: str = _prefill(
        AUTO,
        "Positions of kept tokens: original, or compact with shorter gaps between them; auto: compact where calibration "
        "found it better, or where the prompt exceeds the target's context",
        choices=(AUTO, "original", "compact"),
        rare=True,
    )
    recompute: float = _tuning(0.15, "Largest share of the prompt that draft KV may recompute", minimum=0, maximum=1)
    accept_risk: str | float = _tuning(
        AUTO,
        "Highest risk allowed in accepted draft KV; auto: as calibrated, off: no limit",
        minimum=0,
        words=(OFF, AUTO),
    )
    prompt: str | None = _prefill(
        None, "Prompt template: a name, or the path of a .toml file", unset="the pair's", per_question=False
    )
    max_new_tokens: int = _decoding(256, "Longest answer in tokens", minimum=1)
    temperature: float = _decoding(0.0, "Sampling temperature; 0 is greedy decoding", minimum=0, maximum=10)
    top_p: float = _decoding(
        1.0, "Sample from the smallest set of tokens with this probability", above=0, maximum=1, rare=True
    )
    top_k: int = _decoding(0, "Sample from the K likeliest tokens; 0 is all", minimum=0, rare=True)
    # Random number generators take no larger seed.
    seed: int = _decoding(0, "Seed of sampling", minimum=0, maximum=2**63 - 1, rare=True)
    speculate: str | int = _decoding(
        AUTO, "Tokens to propose at once for the target to verify", minimum=1, words=(OFF, AUTO)
    )
    proposer: str = _decoding(AUTO, "Source of the proposed tokens", choices=(AUTO, "draft", "lookup"), rare=True)
    strict: bool = _documents(False, "Fail, not only warn, if a file of a folder or glob cannot be read", rare=True)
    shortlist: str | int = setting(
        DOCUMENTS,
        AUTO,
        "Characters of several documents that the draft reads, where most of the question's words are; auto: 60,000 where "
        "they have more than 400,000; off: all",
        minimum=3000,
        words=(AUTO, OFF),
        rare=True,
    )
    no_cache: bool = _documents(False, "Keep no texts of documents on disk, and use none that are there")
    memory_cache: str | float = _cache(
        AUTO,
        "GiB of document KV to keep between questions; auto: a quarter of the free memory, on a CPU at most 2; 0: none",
        minimum=0,
        words=(AUTO,),
    )
    confirm: bool = _output(
        False, "Confirm or correct the answer by full prefill afterwards; greedy decoding only", per_question=False
    )
    not_found: str = _output(
        WARN,
        "If the documents may not state an answer: warn, or 'not found' where a fit for the target is sure; strict: where likely",
        choices=(NEVER, WARN, STRICT),
    )
    passages: str | int = _output(3, "Passages to show under the answer", minimum=1, maximum=100, words=(OFF,))

    def __post_init__(self) -> None:
        for name, declared in SETTINGS.items():
            object.__setattr__(self, name, declared.parse(getattr(self, name), declared.flag))
        if self.confirm and self.temperature > 0:
            raise UsageError(
                f"--confirm: a sampled answer cannot be confirmed; leave out --confirm, or --temperature {self.temperature:g}"
            )

    def varied(self, **values: Any) -> "Settings":
        """A validated copy with the given values. Raises UsageError for a value out of range."""
        return replace(self, **values)


def _declared_settings() -> dict[str, Setting]:
    hints, settings = get_type_hints(Settings), {}
    for declared in fields(Settings):
        name, types = declared.name, set(get_args(hints[declared.name]) or (hints[declared.name],))
        kind, optional = next(kind for kind in (bool, int, float, str) if kind in types), NoneType in types
        settings[name] = Setting(name=name, default=declared.default, type=kind, optional=optional, **declared.metadata)
    return settings


SETTINGS: Mapping[str, Setting] = _declared_settings()


def parse_setting(name: str, value: Any, place: str) -> Any:
    """Convert a value to the setting's type. Raises UsageError, naming `place`, for a wrong value or an unknown setting."""
    if name not in SETTINGS:
        raise UsageError(f"{place}: unknown setting '{name}'; known are {', '.join(SETTINGS)}")
    return SETTINGS[name].parse(value, place)


def config_path() -> Path:
    """The config file: $SPECPREFILL_CONFIG, or config.toml in the platform's folder for configuration."""
    return own_path(f"{ENVIRONMENT_PREFIX}CONFIG", "config", "config.toml")
