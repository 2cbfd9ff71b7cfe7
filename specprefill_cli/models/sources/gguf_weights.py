"""The weights of a GGUF file under transformers' names, unpacked in blocks of rows on all cores into the form that is stored."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, ReaderTensor, get_tensor_name_map
from gguf.quants import Q4_K, dequantize
from torch import Tensor
from transformers import AutoConfig

from specprefill_cli.models.running.int8 import FORMS, GROUP, OUTPUTS, PROCESSOR, pack_nibbles, pack_rows, with_gap
from specprefill_cli.models.running.supported import empty_model
from specprefill_cli.models.sources.gguf import refuse, value
from specprefill_cli.models.sources.lora import LoraAdapter

# Weights of a block of rows: small enough for the cache of a core, large enough for numpy.
BLOCK_WEIGHTS = 2**18


@dataclass(frozen=True)
class NamedTensor:
    """A tensor of the file and the name of the parameter that it becomes.

    heads: of a projection whose rows `in_halves` reorders, else 0; offset: what is added to each value
    """

    name: str
    tensor: ReaderTensor
    heads: int = 0
    offset: float = 0.0

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def count(self) -> int:
        return int(self.tensor.n_elements)

    @property
    def keeps_nibbles(self) -> bool:
        """Whether it is stored in 4 bits too: where the file has it so, and this processor multiplies 4 bits quickly."""
        in_file = self.tensor.tensor_type == GGMLQuantizationType.Q4_K and not self.heads and not self.offset
        return in_file and PROCESSOR.startswith("AVX512") and int(self.tensor.shape[1]) % OUTPUTS == 0

    def stored_bytes(self, packed: bool) -> int:
        """About how many bytes it becomes."""
        return self.count * (1 if packed else 2) + (self.count * 5 // 8 if packed and self.keeps_nibbles else 0)


def named_tensors(reader: GGUFReader, config: dict[str, Any]) -> list[NamedTensor]:
    """All tensors by transformers' names, in the file's order. Raises SpecprefillError for unknown or missing ones."""
    architecture = value(reader, "general.architecture")
    model_arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(model_arch, config["num_hidden_layers"])
    model = empty_model(AutoConfig.for_model(**config))
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    parameters = {name: parameter for name, parameter in model.state_dict().items() if name not in tied}
    expected = {names.get_name(name, try_suffixes=(".weight", ".bias")): name for name in parameters}
    rotated = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    named = []
    for tensor in reader.tensors:
        # The configuration holds these.
        if tensor.name.startswith("rope_"):
            continue
        name = expected.pop(tensor.name, None)
        if name is None:
            raise refuse(reader, f"the tensor {tensor.name}, unknown in {architecture} models,")
        if list(reversed(tensor.shape.tolist())) != list(parameters[name].shape):
            raise refuse(reader, f"the tensor {tensor.name} of the shape {tensor.shape.tolist()}")
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise refuse(reader, f"the tensor {tensor.name} of the type {tensor.tensor_type.name}") from error
        heads = rotated.get(tensor.name.split(".")[-2], 0) if architecture == "llama" else 0
        # transformers adds 1 to Gemma's norms in each pass, the file states the sum.
        offset = -1.0 if architecture == "gemma3" and name.endswith("norm.weight") else 0.0
        named.append(NamedTensor(name, tensor, heads, offset))
    if expected:
        raise refuse(reader, f"a file without the tensor {next(iter(expected))}")
    return named


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Rows [heads x size, ...] reordered: llama.cpp rotates neighbours, transformers rows half a head apart."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2) if heads else rows


def unpacked(
    named: NamedTensor, convert: Callable[[Tensor], tuple[Tensor, ...]], pool: ThreadPoolExecutor
) -> list[Tensor]:
    """The tensors that `convert` makes from float32 rows [n, ...], block by block, for all rows of a tensor."""
    data = named.tensor.data
    step = max(1, BLOCK_WEIGHTS * len(data) // named.count)

    def block(start: int) -> tuple[Tensor, ...]:
        values = dequantize(data[start : start + step], named.tensor.tensor_type)
        # An unquantised tensor is a read-only view of the file.
        return convert(torch.from_numpy(values.copy() if not values.flags.writeable else values) + named.offset)

    blocks = pool.map(block, range(0, len(data), step))
    return [in_halves(torch.cat(parts), named.heads) for parts in zip(*blocks, strict=True)]


def stored_tensors(
    named: Sequence[NamedTensor], packed: bool, lora: LoraAdapter | None, step: Callable[[int, str], None]
) -> Iterator[tuple[str, Tensor]]:
    """Names and values as they are stored. step: called with the percent done."""
    done, count = 0, sum(tensor.count for tensor in named)
    with ExitStack() as stack:
        # Every later thread of the process takes the number of torch's threads from the last that set it.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        workers = ThreadPoolExecutor(os.cpu_count() or 1, initializer=torch.set_num_threads, initargs=(1,))
        pool = stack.enter_context(workers)
        for tensor in named:
            convert = pack_rows if packed and len(tensor.tensor.shape) > 1 else lambda values: (values.bfloat16(),)
            if packed and lora is None and tensor.keeps_nibbles:
                parts = in_both_forms(tensor, pool)
            elif lora is None:
                parts = unpacked(tensor, convert, pool)
            else:
                (values,) = unpacked(tensor, lambda rows: (rows,), pool)
                parts = list(convert(lora.merged(tensor.module, values)))
            names = [tensor.name] if len(parts) == 1 else [f"{tensor.module}{end}" for end in FORMS[: len(parts)]]
            yield from zip(names, parts, strict=True)
            done += tensor.count
            step(100 * done // count, "unpacking the weights")


def in_both_forms(named: NamedTensor, pool: ThreadPoolExecutor) -> list[Tensor]:
    """A tensor of Q4_K blocks as `pack_rows` and `pack_nibbles` make it; the latter rounds its scales alone."""
    step = max(1, BLOCK_WEIGHTS // int(named.tensor.shape[0]) // OUTPUTS) * OUTPUTS

    def block(start: int) -> tuple[Tensor, ...]:
        data = named.tensor.data[start : start + step]
        # A block of 256 weights: two factors in float16, 12 bytes of scales, and two weights a byte.
        factors, scales, pairs = np.split(data.reshape(-1, Q4_K.type_size), [4, 4 + Q4_K.K_SCALE_SIZE], axis=1)
        scale, low = (
            torch.from_numpy(factor[:, None] * part.astype(np.float32)).view(len(data), -1, 1)
            for factor, part in zip(factors.copy().view(np.float16).T, Q4_K.get_scale_min(scales.copy()), strict=True)
        )
        pairs = pairs.reshape(len(data), -1, 1, GROUP)
        steps = torch.from_numpy(np.concatenate([pairs & 15, pairs >> 4], axis=2)).view(len(data), -1, GROUP)
        extremes = torch.cat(steps.aminmax(dim=2, keepdim=True), dim=2) * scale - low
        row_scales = (extremes.abs().amax((1, 2)).clamp(min=1e-12) / 127).bfloat16()
        divisor = row_scales.float()[:, None, None]
        values = torch.addcmul(-low / divisor, steps.float(), scale / divisor).round_().clamp_(-127, 127)
        return with_gap(values.flatten(1)), row_scales, *pack_nibbles(steps.flatten(1), scale[..., 0], -low[..., 0])

    *by_row, nibble_scales = zip(*pool.map(block, range(0, len(named.tensor.data), step)), strict=True)
    return [*map(torch.cat, by_row), torch.cat(nibble_scales, dim=1)]


def shards(tensors: Iterator[tuple[str, Tensor]], size: int) -> Iterator[dict[str, Tensor]]:
    """Named tensors in groups of about `size` bytes."""
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        shard[name] = tensor.contiguous()
        if sum(part.nbytes for part in shard.values()) >= size:
            yield shard
            shard = {}
    if shard:
        yield shard
