"""What `bench peer` measures: a pair, and other programs that run the same target on the same device."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.lab.benchmarks.gguf_target import bundled_gguf, with_gguf_target
from specprefill_cli.lab.benchmarks.peers import (
    LLAMA_CPP,
    VLLM,
    Peer,
    has_vllm,
    llama_cpp_peer,
    transformers_peer,
    vllm_peer,
)
from specprefill_cli.models.hub import model_source
from specprefill_cli.models.memory_plan import cache_bytes, weight_bytes
from specprefill_cli.models.refs import Kind, ModelRef
from specprefill_cli.settings import AUTO, Settings

ENGINES = (AUTO, LLAMA_CPP, VLLM)
# A prompt may be a few tokens longer than its nominal length.
SLACK = 64
# What vLLM takes beside weights and KV, for a pass and for CUDA graphs.
WORKSPACE = 4 * 2**30


def chosen_engine(engine: str, gguf: Path | None) -> str:
    """The program to compare with: `auto` is vLLM where that can run, unless a GGUF file is given.

    Raises UsageError for an unknown name, and for a GGUF file with vLLM; SpecprefillError for vLLM without a GPU.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: unknown; use one of {', '.join(ENGINES)}")
    if engine == AUTO:
        return VLLM if gguf is None and has_vllm() else LLAMA_CPP
    if engine == VLLM and gguf is not None:
        raise UsageError("--gguf is for llama.cpp: leave it out, or use --engine llama.cpp")
    if engine == VLLM and not torch.cuda.is_available():
        raise SpecprefillError("--engine vllm needs a CUDA GPU; use --engine llama.cpp")
    return engine


def open_with_peers(
    engine: str, settings: Settings, lengths: Sequence[int], gguf: Path | None
) -> tuple[Session, list[Peer]]:
    """The pair of the settings, and the peers that run its target: on the GPU with vLLM, else on the CPU.

    Raises SpecprefillError where a model or another program cannot be loaded.
    """
    if engine == VLLM:
        return with_vllm(settings, max(lengths) + SLACK)
    return with_llama_cpp(settings.varied(devices="cpu"), max(lengths) + SLACK, gguf)


def with_llama_cpp(settings: Settings, context: int, gguf: Path | None) -> tuple[Session, list[Peer]]:
    """llama.cpp with a GGUF file, and a pair whose target has that file's weights."""
    session = open_session(settings, draft=True, target_weights=False)
    name = session.pair.target.name
    with ExitStack() as stack:
        if gguf is None:
            if ModelRef(name).kind is not Kind.BUNDLED:
                raise UsageError(f"--gguf is needed: give the GGUF file of {name}")
            gguf = bundled_gguf(name, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        peer = llama_cpp_peer(gguf, context, torch.get_num_threads())
        with_gguf_target(session.pair, gguf, settings.dtype)
    return session, [peer]


def with_vllm(settings: Settings, context: int) -> tuple[Session, list[Peer]]:
    """VLLM and transformers with the target's checkpoint; vLLM gets its memory after our pair is loaded."""
    session = open_session(settings, draft=True)
    target = session.pair.loaded_target
    dtype = target.model.dtype
    needed = weight_bytes(target.config, dtype) + cache_bytes(target.config, context, dtype) + WORKSPACE
    share = min(0.9, needed / torch.cuda.get_device_properties(0).total_memory)
    checkpoint = model_source(target.name)
    return session, [transformers_peer(target), vllm_peer(checkpoint, target.dtype, context, share)]
