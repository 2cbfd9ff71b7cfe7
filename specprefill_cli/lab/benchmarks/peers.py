"""Other readers of the same prompt, measured beside the modes: transformers itself, and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.attention import ATTENTION

if TYPE_CHECKING:
    from torch import Tensor

    from specprefill_cli.models.loading import LoadedModel

TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
PLAIN_ATTENTION = "sdpa"


@dataclass(frozen=True)
class Peer:
    """Somebody else's plain prefill, by name.

    read: takes token ids [M] on the CPU, and returns the first token of the answer, chosen greedily
    """

    name: str
    read: Callable[[Tensor], int]


def transformers_peer(target: LoadedModel) -> Peer:
    """Transformers' own `generate` of one token, with its own attention, masks and cache.

    It runs the weights of the target that is loaded already, in their dtype and on their devices: a second copy would
    double the memory, and could not be measured in turns with the modes. All that specprefill changes in a loaded model
    is the name of its attention function and what its linear layers multiply with; while the peer reads, both are
    transformers' and torch's own again.
    """
    import torch

    model = target.model

    def read(tokens: Tensor) -> int:
        ids = tokens[None].to(model.get_input_embeddings().weight.device)
        model.set_attn_implementation(PLAIN_ATTENTION)
        try:
            # The prompt has no padding, but generate looks for some where it is not told.
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=1,
                do_sample=False,
                pad_token_id=0,
            )
        finally:
            model.set_attn_implementation(ATTENTION)
        return int(made[0, -1])

    return Peer(TRANSFORMERS, read)


def llama_cpp_peer(file: Path, context: int, threads: int) -> Peer:
    """llama.cpp on the CPU with the model in a GGUF file.

    context: tokens it makes room for

    Raises SpecprefillError where llama-cpp-python is not installed.
    """
    try:
        from llama_cpp import Llama
    except ImportError as error:
        raise SpecprefillError(
            "bench peer needs the package llama-cpp-python; install it with pip install 'specprefill[peer]'"
        ) from error
    model = Llama(
        model_path=str(file), n_ctx=context, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False
    )

    def read(tokens: Tensor) -> int:
        # Forgets the last prompt: every reading is cold.
        model.reset()
        model.eval(tokens.tolist())
        return model.sample(temp=0.0)

    return Peer(LLAMA_CPP, read)
