"""Other programs' plain prefill, measured on the same prompts as the modes: transformers, llama.cpp and vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.installation import install_command, pip_command
from specprefill_cli.models.attention import ATTENTION

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.models.loading import LoadedModel

TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
VLLM = "vllm"
PLAIN_ATTENTION = "sdpa"


@dataclass(frozen=True)
class Peer:
    """Another program's plain prefill: read takes token ids [M] on the CPU and returns the first token, chosen greedily."""

    name: str
    read: Callable[[Tensor], int]


def transformers_peer(target: LoadedModel) -> Peer:
    """Transformers' own `generate` of one token, with its own attention, masks and cache.

    It runs the loaded target's weights on their devices: a second copy would double the memory. While it reads, the
    model has transformers' attention again.
    """
    import torch

    # Any: transformers' annotations do not know `generate` on every model.
    model: Any = target.model

    def read(tokens: Tensor) -> int:
        ids = tokens[None].to(model.get_input_embeddings().weight.device)
        model.set_attn_implementation(PLAIN_ATTENTION)
        try:
            generated = model.generate(
                input_ids=ids,
                # Without a mask, generate would look for padding.
                attention_mask=torch.ones_like(ids),
                max_new_tokens=1,
                do_sample=False,
                pad_token_id=0,
            )
        finally:
            model.set_attn_implementation(ATTENTION)
        return int(generated[0, -1])

    return Peer(TRANSFORMERS, read)


def llama_cpp_peer(file: Path, context: int, threads: int) -> Peer:
    """llama.cpp on the CPU with the model in a GGUF file; context: tokens to allocate the cache for.

    Raises SpecprefillError if xllamacpp is not installed, or cannot load the file.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise SpecprefillError(
            f"bench peer needs the package xllamacpp; install it with {install_command('peer')}"
        ) from error
    options = xllamacpp.CommonParams()
    options.model.path = str(file)
    options.n_ctx, options.n_parallel, options.n_gpu_layers = context, 1, 0
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    # Any free port: its server listens in any case.
    options.port, options.verbosity = 0, -1
    try:
        server = xllamacpp.Server(options)
    except (RuntimeError, ValueError) as error:
        raise SpecprefillError(f"{file}: llama.cpp cannot load it ({first_line(error)})") from error

    def read(tokens: Tensor) -> int:
        # Without the cache, so that every prefill starts cold; the ids of tokens come with their probabilities.
        question = {"prompt": tokens.tolist(), "max_tokens": 1, "temperature": 0, "cache_prompt": False, "logprobs": 1}
        return int(server.handle_completions(question)["choices"][0]["logprobs"]["content"][0]["id"])

    return Peer(LLAMA_CPP, read)


def has_vllm() -> bool:
    """Whether vLLM is installed and there is an NVIDIA GPU for it."""
    import torch

    return find_spec("vllm") is not None and torch.cuda.is_available()


def vllm_peer(checkpoint: str, dtype: str, context: int, memory_share: float) -> Peer:
    """VLLM on the GPU with the target's checkpoint, a folder or a hub id, in the target's dtype.

    It caches no prefixes, so that every prefill starts cold; the rest is as vLLM sets it.

    context: tokens of the longest prompt and its first token; memory_share: of the whole GPU, for weights and KV

    Raises SpecprefillError if vLLM is not installed or cannot load the checkpoint.
    """
    try:
        from vllm import LLM, SamplingParams
    except ImportError as error:
        raise SpecprefillError(
            f"bench peer --engine vllm needs the package vllm; install it with {pip_command('vllm')}"
        ) from error
    try:
        engine = LLM(
            model=checkpoint,
            dtype=dtype,
            max_model_len=context,
            gpu_memory_utilization=memory_share,
            enable_prefix_caching=False,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise SpecprefillError(f"{checkpoint}: vLLM cannot load it ({first_line(error)})") from error
    one_token = SamplingParams(temperature=0.0, max_tokens=1)

    def read(tokens: Tensor) -> int:
        (answer,) = engine.generate([{"prompt_token_ids": tokens.tolist()}], one_token, use_tqdm=False)
        return int(answer.outputs[0].token_ids[0])

    return Peer(VLLM, read)
