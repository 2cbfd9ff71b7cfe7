"""A pair's target from a GGUF file, so that llama.cpp and specprefill run the same weights."""

from __future__ import annotations

import io
import struct
from contextlib import redirect_stderr
from pathlib import Path

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.installation import install_command
from specprefill_cli.lab.benchmarks.gguf_export import export_gguf
from specprefill_cli.models.attention import ATTENTION
from specprefill_cli.models.loading import LoadedModel, LoadedPair, stop_tokens
from specprefill_cli.models.placement import Placement, choose_dtype
from specprefill_cli.models.sources import model_source
from specprefill_cli.models.validation import check_config, check_model


def missing_reader() -> SpecprefillError:
    """What to raise where the package gguf is not installed."""
    return SpecprefillError(f"GGUF files need the package gguf; install it with {install_command('peer')}")


def bundled_gguf(name: str, folder: Path) -> Path:
    """Write a bundled model as `target.gguf`, with 8-bit weights, into a folder; the file's path.

    Raises SpecprefillError if the package gguf is not installed.
    """
    file = folder / "target.gguf"
    try:
        export_gguf(Path(model_source(name)), file)
    except ImportError as error:
        raise missing_reader() from error
    return file


def with_gguf_target(pair: LoadedPair, file: Path, dtype: str) -> None:
    """Replace the pair's target by the model in a GGUF file, unpacked into `dtype`; the tokenizer stays.

    Raises SpecprefillError for an unreadable file, or one of another model than the pair's target.
    """
    from transformers import AutoModelForCausalLM

    outline = pair.target
    text = outline.config.get_text_config()
    try:
        # The progress bar of transformers' GGUF reader cannot be disabled.
        with redirect_stderr(io.StringIO()):
            model = AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                dtype=choose_dtype(dtype, Placement(None), text.hidden_size),
                attn_implementation=ATTENTION,
                local_files_only=True,
            )
    except ImportError as error:
        raise missing_reader() from error
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        raise SpecprefillError(f"{file}: cannot be loaded ({first_line(error)}); give another GGUF file") from error
    for size in ("vocab_size", "num_hidden_layers", "hidden_size"):
        actual, expected = getattr(model.config.get_text_config(), size), getattr(text, size)
        if actual != expected:
            raise SpecprefillError(
                f"{file}: not the model {outline.name} ({size} {actual}, not {expected}); give its file"
            )
    check_config(model.config, str(file))
    check_model(model, str(file))
    stops = stop_tokens(model, outline.tokenizer)
    pair.target = LoadedModel(str(file), model.eval(), outline.tokenizer, outline.context, stops)
