"""A pair's target from a GGUF file, so that llama.cpp and specprefill run the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.benchmarks.gguf_export import export_gguf
from specprefill_cli.models.hub import model_source
from specprefill_cli.models.loading import LoadedPair, load_model, stop_tokens
from specprefill_cli.models.placement import Placement


def bundled_gguf(name: str, folder: Path) -> Path:
    """Write a bundled model as `target.gguf`, with 8-bit weights, into a folder; the file's path."""
    file = folder / "target.gguf"
    export_gguf(Path(model_source(name)), file)
    return file


def with_gguf_target(pair: LoadedPair, file: Path, dtype: str) -> None:
    """Replace the pair's target by the model in a GGUF file, unpacked into `dtype`; the tokenizer stays.

    Raises SpecprefillError for an unreadable file, or one of another model than the pair's target.
    """
    outline = pair.target
    text = outline.config.get_text_config()
    loaded = load_model(str(file), Placement(None), dtype, offline=True)
    for size in ("vocab_size", "num_hidden_layers", "hidden_size"):
        actual, expected = getattr(loaded.config.get_text_config(), size), getattr(text, size)
        if actual != expected:
            raise SpecprefillError(
                f"{file}: not the model {outline.name} ({size} {actual}, not {expected}); give its file"
            )
    stops = stop_tokens(loaded.model, outline.tokenizer)
    pair.target = replace(loaded, tokenizer=outline.tokenizer, stop_tokens=stops)
