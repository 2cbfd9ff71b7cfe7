"""The registry of pairs: `tiny`, and well-known Hugging Face models in the sizes that people run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specprefill_cli.errors import UsageError

# Prefix of the bundled models' names.
BUNDLED = "tiny:"


@dataclass(frozen=True)
class Pair:
    """A named pair: hub ids or folders of draft and target, and the prompt template that suits them."""

    name: str
    draft: str
    target: str
    prompt: str = "ask"
    note: str = ""


PAIRS: Mapping[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair("tiny", f"{BUNDLED}draft", f"{BUNDLED}target", "tiny", "bundled; small, runs anywhere"),
        Pair("qwen2.5-1.5b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
        Pair("qwen2.5-3b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct"),
        Pair("qwen2.5-7b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        Pair("qwen2.5-14b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-14B-Instruct"),
        Pair("qwen2.5-32b", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-32B-Instruct"),
        Pair("qwen2.5-72b", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-72B-Instruct"),
        Pair("qwen3-4b", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B"),
        Pair("qwen3-8b", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"),
        Pair("qwen3-14b", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-14B"),
        Pair("qwen3-32b", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B"),
        Pair("llama-3.2-3b", "meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", note="gated"),
        Pair("llama-3.1-8b", "meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", note="gated"),
        Pair("llama-3.3-70b", "meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", note="gated"),
        Pair("gemma-3-4b", "google/gemma-3-1b-it", "google/gemma-3-4b-it", note="gated"),
        Pair("gemma-3-12b", "google/gemma-3-1b-it", "google/gemma-3-12b-it", note="gated"),
        Pair("gemma-3-27b", "google/gemma-3-1b-it", "google/gemma-3-27b-it", note="gated"),
        Pair(
            "ministral-8b", "mistralai/Ministral-3-3B-Instruct-2512-BF16", "mistralai/Ministral-3-8B-Instruct-2512-BF16"
        ),
        Pair(
            "mistral-small-24b",
            "mistralai/Ministral-3-3B-Instruct-2512-BF16",
            "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        ),
        Pair("phi-4", "microsoft/Phi-4-mini-instruct", "microsoft/phi-4", note="two tokenizers: mode select only"),
    )
}


def find_pair(name: str, draft: str | None = None, target: str | None = None) -> Pair:
    """The named pair, with draft or target replaced by a hub id or folder where given.

    Raises UsageError for an unknown name.
    """
    if draft is not None and target is not None:
        return Pair("custom", draft, target)
    if name not in PAIRS:
        raise UsageError(f"pair '{name}': unknown; known are {', '.join(PAIRS)}, or give --draft and --target")
    known = PAIRS[name]
    if draft is None and target is None:
        return known
    # A foreign target needs its own chat template; the bundled prompt suits the bundled target alone.
    prompt = known.prompt if target is None else "ask"
    return Pair("custom", draft or known.draft, target or known.target, prompt)
