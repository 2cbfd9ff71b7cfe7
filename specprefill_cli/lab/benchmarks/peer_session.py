"""A pair beside llama.cpp with the same target."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.gguf_target import bundled_gguf, with_gguf_target
from specprefill_cli.lab.benchmarks.peers import Peer, llama_cpp_peer
from specprefill_cli.models.refs import Kind, ModelRef
from specprefill_cli.settings import Settings

# A prompt may be a few tokens longer than its nominal length.
SLACK = 64


def open_with_llama_cpp(settings: Settings, lengths: Sequence[int], gguf: Path | None) -> tuple[Session, Peer]:
    """llama.cpp with a GGUF file on the CPU, and a pair whose target has that file's weights.

    gguf: None makes that of the bundled pair

    Raises SpecprefillError where a model or llama.cpp cannot be loaded, UsageError where the file is missing.
    """
    session = open_session(settings.varied(devices="cpu"), draft=True, target_weights=False)
    name = session.pair.target.name
    with ExitStack() as stack:
        if gguf is None:
            if ModelRef(name).kind is not Kind.BUNDLED:
                raise UsageError(f"--gguf is needed: give the GGUF file of {name}")
            gguf = bundled_gguf(name, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        peer = llama_cpp_peer(gguf, max(lengths) + SLACK, torch.get_num_threads())
        with_gguf_target(session.pair, gguf, settings.dtype)
    return session, peer
