"""Matrices in int8 with a scale for each row: packed, multiplied, and read from a converted folder.

Decoding on a CPU is bound by reading the weights: those of a file in 4 bits are kept in 4 bits as well, for few rows.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from specprefill_cli.models.running.attention import ATTENTION
from specprefill_cli.models.running.supported import empty_model

# Values of each weight that a model's fingerprint covers, and the attribute that holds them once weights are packed.
SAMPLED, SAMPLES = 16, "unpacked_samples"
# What the configuration of such a model says; processors of another kind want the 4 bits in another order.
PROCESSOR = torch.backends.cpu.get_cpu_capability()
STORED = {"quant_method": "int8-rows", "processor": PROCESSOR}
# Whether the processor adds products of 8-bit integers (AVX512-VNNI, AMX). Others add two of them in 16 bits, which weights in 8
# and states in 7 bits never exceed.
ADDS_PRODUCTS = torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()
HAS_7_BITS = PROCESSOR in {"AVX2", "AVX512"} and torch.backends.mkldnn.is_available()
# Most rows that are multiplied by weights unpacked in registers, and most that are multiplied in integers.
WHOLE_ROWS, ROUNDED_ROWS = (4, 64) if ADDS_PRODUCTS else (32, sys.maxsize if HAS_7_BITS else 0)
# Steps from zero to a row's largest value, and those of half a step, in which what rounding left is expressed.
STEPS = 127 if ADDS_PRODUCTS else 63
REST = 2 * STEPS
# What rounding left is dropped in rows whose largest value is below this multiple of their root mean square: at most 5 % of a
# product.
EVEN = 0 if ADDS_PRODUCTS else 10
# Where torch's product wants the rows of a matrix to begin: elsewhere it faults.
ALIGNMENT = 16
# Weights that are unpacked at a time: so many stay in a processor's cache until they are multiplied.
UNPACKED = 2**20
# Rows of a multiple of so many bytes compete for the same lines of a processor's cache, so that a product takes three times as
# long; this many columns of zeros between them end that.
ALIASED, GAP = 1024, 64
# Weights of a row that share a scale where they are kept in 4 bits, and the outputs that torch's product computes together.
GROUP, OUTPUTS = 32, 64
# Endings of the names of a stored matrix: in int8 and in 4 bits, each with its scales.
FORMS = PACKED, SCALES, NIBBLES, NIBBLE_SCALES = ".packed", ".scales", ".nibbles", ".nibble_scales"


def pack_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] in int8 [out, in + gap], and the scale of each row [out] in bfloat16.

    gap: columns of zeros after rows of some lengths, see `ALIASED`
    """
    # Rounded before packing: a rounding error would scale a whole row.
    scales = (weight.abs().amax(1).clamp(min=1e-12) / 127).bfloat16()
    return with_gap((weight / scales.float()[:, None]).round_().clamp_(-127, 127)), scales


def with_gap(rows: Tensor) -> Tensor:
    """Whole numbers [out, in] in int8 [out, in + gap]."""
    return F.pad(rows.to(torch.int8), (0, 0 if rows.shape[1] % ALIASED else GAP))


def pack_nibbles(steps: Tensor, scales: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Weights steps * scale + offset in 4 bits [out, in / 2], ordered for this processor, and their scales [in / GROUP, out, 2].

    steps: [out, in], of 0 to 15; scales, offsets: [out, in / GROUP], of each group of a row
    """
    # Torch's product counts the steps from 8.
    scale_pairs = torch.stack([scales, offsets + 8 * scales], dim=-1).transpose(0, 1).bfloat16()
    return torch._convert_weight_to_int4pack_for_cpu(steps.int(), 1), scale_pairs.contiguous()


class Int8Linear(nn.Module):
    """A linear layer with int8 weights [out, in + gap] and a scale for each output, as `pack_rows` makes them.

    nibbles: the same weights as `pack_nibbles` makes them, and their scales
    """

    packed: Tensor
    scales: Tensor

    def __init__(
        self,
        packed: Tensor,
        scales: Tensor,
        inputs: int,
        bias: nn.Parameter | None,
        nibbles: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, len(packed)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.bias = bias
        self.nibbles = nibbles

    def forward(self, states: Tensor) -> Tensor:
        """States [..., in] -> [..., out] in their dtype."""
        rows = states.reshape(-1, self.in_features)
        output = self.product(rows)(rows)
        output = output.view(*states.shape[:-1], self.out_features)
        return output if self.bias is None else output.add_(self.bias)

    def product(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """The fastest way to multiply rows [n, in]."""
        if len(rows) <= WHOLE_ROWS:
            if self.nibbles is not None and rows.dtype is torch.bfloat16:
                return self.nibble_product
            if (self.packed.data_ptr() | self.packed.shape[1]) % ALIGNMENT == 0:
                return self.whole_product
        return self.rounded_product if WHOLE_ROWS < len(rows) <= ROUNDED_ROWS else self.unpacked_product

    def nibble_product(self, rows: Tensor) -> Tensor:
        """Rows [n, in] in bfloat16 -> [n, out], by the weights in 4 bits."""
        nibbles, scales = self.nibbles  # type: ignore[misc]
        return torch._weight_int4pack_mm_for_cpu(rows, nibbles, GROUP, scales)

    def whole_product(self, rows: Tensor) -> Tensor:
        """Rows [n, in], multiplied in bfloat16 -> [n, out], by weights that are unpacked in registers."""
        padded = F.pad(rows.bfloat16(), (0, self.packed.shape[1] - self.in_features))
        return torch._weight_int8pack_mm(padded, self.packed, self.scales).to(rows.dtype)

    def unpacked_product(self, rows: Tensor) -> Tensor:
        """Rows [n, in] -> [n, out] by weights in their dtype, unpacked for this product in blocks of outputs."""
        output = rows.new_empty(len(rows), self.out_features)
        buffer = rows.new_empty(max(1, UNPACKED // self.in_features), self.in_features)
        for part, packed in zip(output.split(len(buffer), 1), self.packed.split(len(buffer)), strict=True):
            part.copy_(rows @ buffer[: len(packed)].copy_(packed[:, : self.in_features]).t())
        return output.mul_(self.scales)

    def rounded_product(self, rows: Tensor) -> Tensor:
        """Rows [n, in] -> [n, out], in integers: each row in steps of a scale, and what rounding left of uneven rows.

        Where most are uneven, twice as many integers take no less time than unpacked weights.
        """
        scales = (rows.abs().amax(1, keepdim=True).float() / STEPS).clamp_(min=1e-12)
        is_uneven = rows.norm(dim=1) * EVEN <= scales[:, 0] * STEPS * self.in_features**0.5
        uneven = is_uneven.nonzero()[:, 0]
        if EVEN and 2 * len(uneven) > len(rows):
            return self.unpacked_product(rows)
        steps = rows.float() / scales
        whole = steps.round()
        rest = steps.sub_(whole)[uneven].mul_(REST).round_()
        product = self.integer_product(torch.cat([whole.to(torch.int8), rest.to(torch.int8)]))
        output = product[: len(rows)].index_add_(0, uneven, product[len(rows) :], alpha=1 / REST)
        return output.mul_(scales).mul_(self.scales).to(rows.dtype)

    def integer_product(self, rows: Tensor) -> Tensor:
        """Rows [n, in] from -STEPS to STEPS in int8 -> [n, out] in float32, without the scales of the weights."""
        if ADDS_PRODUCTS:
            return torch._int_mm(rows, self.packed[:, : self.in_features].t()).float()
        # oneDNN wants states without a sign: they are counted from their zero.
        states = F.pad(rows, (0, self.packed.shape[1] - self.in_features)).add_(STEPS).view(torch.uint8)
        weights = torch.ops.onednn.qlinear_prepack(self.packed, None), torch.ones(1), torch.zeros(1, dtype=torch.int32)
        product = torch.ops.onednn.qlinear_pointwise
        return product(states, 1.0, STEPS, *weights, None, 1.0, 0, torch.float32, "none", [], "")


class Int8Embedding(nn.Module):
    """An embedding with int8 rows [tokens, width + gap] and a scale for each. multiplier: of every vector, as in Gemma."""

    packed: Tensor
    scales: Tensor

    def __init__(self, packed: Tensor, scales: Tensor, width: int, dtype: torch.dtype, multiplier: float) -> None:
        super().__init__()
        self.embedding_dim, self.dtype, self.multiplier = width, dtype, multiplier
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [...] -> vectors [..., width]."""
        vectors = self.packed[tokens][..., : self.embedding_dim].to(self.dtype)
        vectors = vectors * self.scales[tokens][..., None].to(self.dtype)
        return vectors if self.multiplier == 1 else vectors * self.multiplier


def quantize_on_cpu(model: PreTrainedModel) -> None:
    """Replace all linear layers of a model on the CPU, the vocabulary's too; embeddings stay as they are.

    Calibrations of the unpacked weights still apply: their fingerprint is that of the samples kept here.
    """
    flat_weights = {name: weight.detach().flatten() for name, weight in model.named_parameters()}
    samples = {name: flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].clone() for name, flat in flat_weights.items()}
    setattr(model, SAMPLES, samples)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            packed = Int8Linear(*pack_rows(module.weight.data.float()), module.in_features, module.bias)
            model.set_submodule(name, packed)


def load_written(folder: Path, config: PretrainedConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, list[str]]:
    """The model of a folder that this package wrote, in 8 bits or not, and the names of weights that the folder lacks.

    Weights of its dtype stay in the files until a pass reads them. dtype: of everything but packed matrices
    """
    model = empty_model(config, dtype=dtype, attn_implementation=ATTENTION)
    files = map(load_file, sorted(folder.glob("*.safetensors")))
    tensors = {name: tensor for file in files for name, tensor in file.items()}
    for name, module in list(model.named_modules()):
        stored = "model.embed_tokens" if name == "lm_head" and config.tie_word_embeddings else name
        if f"{stored}{PACKED}" not in tensors:
            continue
        matrix = tensors[f"{stored}{PACKED}"], tensors[f"{stored}{SCALES}"]
        if isinstance(module, nn.Embedding):
            multiplier = float(getattr(module, "embed_scale", 1.0))
            model.set_submodule(name, Int8Embedding(*matrix, module.embedding_dim, dtype, multiplier))
        else:
            bias = tensors.get(f"{name}.bias")
            fixed_bias = None if bias is None else fixed(bias, dtype)
            has_nibbles = f"{stored}{NIBBLES}" in tensors and config.quantization_config["processor"] == PROCESSOR
            nibbles = (tensors[f"{stored}{NIBBLES}"], tensors[f"{stored}{NIBBLE_SCALES}"]) if has_nibbles else None
            model.set_submodule(name, Int8Linear(*matrix, module.in_features, fixed_bias, nibbles))
    for name, _ in [*model.named_parameters()]:
        if name in tensors:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, fixed(tensors[name], dtype))
    if not any(name.endswith(PACKED) for name in tensors):
        model.tie_weights()
    return model, sorted(name for name, weight in model.named_parameters() if weight.is_meta)


def fixed(tensor: Tensor, dtype: torch.dtype) -> nn.Parameter:
    """A parameter that is not trained."""
    return nn.Parameter(tensor.to(dtype), requires_grad=False)
