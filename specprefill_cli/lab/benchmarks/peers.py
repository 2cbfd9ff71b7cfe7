"""Plain prefill of other programs (transformers, llama.cpp), measured on the same prompts as the modes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError, UsageError, first_line, pip_command
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.running.attention import ATTENTION
from specprefill_cli.models.running.cache import device_of
from specprefill_cli.models.sources.refs import ModelRef

TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
PLAIN_ATTENTION = "sdpa"
# Tokens of room for a prompt that is longer than its nominal length, and for decoding.
SLACK = 128


@dataclass(frozen=True)
class Peer:
    """Another program's plain prefill. read: token ids [M] on the CPU -> the first token, chosen greedily.

    decode: token ids that `read` has just prefilled, and a number of tokens -> tokens a second of decoding them
    """

    name: str
    read: Callable[[Tensor], int]
    decode: Callable[[Tensor, int], float] | None = None


def transformers_peer(target: LoadedModel) -> Peer:
    """Transformers' own `generate` of a single token, with its own attention, masks and cache.

    It runs the loaded target in place: a second copy would double the memory. During `read`, the model uses transformers'
    attention again.
    """
    # Any: transformers' annotations do not declare `generate` for every model.
    model: Any = target.model

    def read(tokens: Tensor) -> int:
        ids = tokens[None].to(device_of(model.get_input_embeddings()))
        model.set_attn_implementation(PLAIN_ATTENTION)
        try:
            generated = model.generate(
                input_ids=ids,
                # Without a mask, generate would search for padding.
                attention_mask=torch.ones_like(ids),
                max_new_tokens=1,
                do_sample=False,
                pad_token_id=0,
            )
        finally:
            model.set_attn_implementation(ATTENTION)
        return int(generated[0, -1])

    return Peer(TRANSFORMERS, read)


def llama_cpp_peer(file: Path, longest: int, threads: int) -> Peer:
    """llama.cpp on the CPU with the model in a GGUF file; longest: prompt length in tokens.

    Raises SpecprefillError if xllamacpp is not installed or cannot load the file.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise SpecprefillError(
            f"--llama-cpp needs the package xllamacpp; install it with {pip_command('xllamacpp')}"
        ) from error
    options = xllamacpp.CommonParams()
    options.model.path = str(file)
    options.n_ctx, options.n_parallel, options.n_gpu_layers = longest + SLACK, 1, 0
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    # Let it choose a free port: the server always listens.
    options.port, options.verbosity = 0, -1
    try:
        server = xllamacpp.Server(options)
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"{file}: llama.cpp cannot load it ({first_line(error)})") from error

    def read(tokens: Tensor) -> int:
        # Turn the cache off, so that every prefill starts cold. Ask for logprobs, because they carry the token ids.
        question = {"prompt": tokens.tolist(), "max_tokens": 1, "temperature": 0, "cache_prompt": False, "logprobs": 1}
        return int(server.handle_completions(question)["choices"][0]["logprobs"]["content"][0]["id"])

    def decode(tokens: Tensor, count: int) -> float:
        question = {"prompt": tokens.tolist(), "max_tokens": count, "temperature": 0, "ignore_eos": True}
        return float(server.handle_completions(question)["timings"]["predicted_per_second"])

    return Peer(LLAMA_CPP, read, decode)


def gguf_file(name: str) -> Path:
    """The GGUF file of a model. Raises UsageError for a model that has none here."""
    file = ModelRef(name).file
    if file is None:
        raise UsageError(f"--llama-cpp: {name} is no GGUF file; give --target FILE.gguf")
    return file
