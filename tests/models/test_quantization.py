"""Quantised targets: what transformers gets, errors for missing requirements, and fingerprints whatever the dtype."""

import pytest
import torch
import transformers

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models import loading
from specprefill_cli.models.machine import quantization
from specprefill_cli.models.machine.memory_plan import weight_bytes
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.machine.quantization import quantization_config
from specprefill_cli.models.running import int8
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.int8 import ALIASED, Int8Linear, pack_rows
from specprefill_cli.models.running.supported import empty_model
from specprefill_cli.models.sources.pairs import Pair
from specprefill_cli.prefill.calibration import weights_fingerprint
from specprefill_cli.settings import Settings
from tests.helpers.architectures import SIZES, build_model

CPU, GPU = Placement(None), Placement({"": "cuda:0"})


@pytest.mark.parametrize(("name", "placement"), [("int8", Placement(None, shards=2)), ("nf4", CPU)])
def test_the_missing_device_or_package_is_named_before_anything_is_loaded(name, placement, monkeypatch):
    # In int8 a CPU needs nothing, but ranks cannot divide such weights.
    settings, pair = Settings(offline=True, quantization=name), Pair("p", "no/draft", "no/target")
    reason = "ranks cannot divide" if placement.shards > 1 else r"needs a CUDA device, .* would run on cpu; "
    with pytest.raises(SpecprefillError, match=rf"^--quantization {name}:? {reason}"):
        loading.load_pair(pair, placement, settings, True, True)
    monkeypatch.setattr(quantization.utils, "is_bitsandbytes_available", lambda: False)
    message = r"needs the package bitsandbytes .*; install it with .* -m pip install "
    with pytest.raises(SpecprefillError, match=message):
        loading.load_pair(pair, GPU, settings, True, True)


def test_int8_on_a_cpu_packs_all_linear_layers_and_keeps_calibrations(llama):
    pair, settings = Pair("p", str(llama), str(llama)), Settings(offline=True)
    plain, packed = (
        loading.load_pair(pair, CPU, settings.varied(quantization=name), False, True).loaded_target
        for name in ("none", "int8")
    )
    kinds = {type(module) for module in packed.model.modules()}
    assert Int8Linear in kinds
    assert torch.nn.Linear not in kinds
    assert weights_fingerprint(packed.model) == weights_fingerprint(plain.model)
    tokens = torch.arange(3, 63)
    for rows in (1, 60):
        (expected, _), (logits, _) = (
            prefill(loaded.model, tokens[:rows], torch.arange(rows), 100) for loaded in (plain, packed)
        )
        difference = (logits - expected).norm() / expected.norm()
        assert 0 < difference < 0.05


@pytest.fixture(params=[127, 63])
def steps(request, monkeypatch):
    """Steps of rounded states: both kinds of integer products run on most processors."""
    if request.param == 63 and not int8.HAS_7_BITS:
        pytest.skip("this processor has no product of integers in oneDNN")
    changes = {"WHOLE_ROWS": 0, "ROUNDED_ROWS": 100, "EVEN": 0, "STEPS": request.param, "REST": 2 * request.param}
    for name, value in (changes | {"ADDS_PRODUCTS": request.param == 127}).items():
        monkeypatch.setattr(int8, name, value)
    return request.param


def test_what_rounding_leaves_of_even_rows_is_dropped(monkeypatch, steps):
    monkeypatch.setattr(int8, "EVEN", 10)
    packed, states = Int8Linear(*pack_rows(torch.randn(48, 256)), 256, None), torch.randn(6, 256)
    states[:3, 7] = 40
    expected = states @ (packed.packed[:, :256].float() * packed.scales.float()[:, None]).T
    errors = (packed(states) - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors[:3].max() < 2e-3 < errors[3:].min()
    assert errors[3:].max() < 0.05


@pytest.mark.parametrize("width", [72, 64, ALIASED])
@pytest.mark.parametrize(("whole", "rounded"), [(0, 0), (0, 100), (4, 0)])
def test_int8_weights_and_scales_are_those_of_a_layer(monkeypatch, steps, width, whole, rounded):
    monkeypatch.setattr(int8, "WHOLE_ROWS", whole)
    monkeypatch.setattr(int8, "ROUNDED_ROWS", rounded)
    # Blocks of 20 outputs, of which the last has 8.
    monkeypatch.setattr(int8, "UNPACKED", 20 * width)
    linear = torch.nn.Linear(width, 48)
    packed, states = Int8Linear(*pack_rows(linear.weight.data), width, linear.bias), torch.randn(2, 9, width)
    weight = packed.packed[:, :width].float() * packed.scales.float()[:, None]
    assert ((weight - linear.weight).abs() <= packed.scales.float()[:, None] * 0.75).all()
    expected = states @ weight.T + linear.bias
    # What rounding leaves of the states is multiplied too.
    torch.testing.assert_close(packed(states), expected, atol=2e-3, rtol=2e-3)
    for rows in (states, states[:1, :3]):
        narrow = packed(rows.bfloat16())
        assert narrow.dtype is torch.bfloat16
        exact = rows.bfloat16().float() @ weight.T + linear.bias
        torch.testing.assert_close(narrow.float(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("offset", [0, 8])
def test_few_rows_are_multiplied_wherever_the_weights_of_a_file_begin(offset):
    packed, scales = pack_rows(torch.randn(64, 512))
    place = torch.empty(packed.numel() + 64, dtype=torch.int8)
    place = place[-place.data_ptr() % 64 + offset :][: packed.numel()].view(packed.shape)
    layer, rows = Int8Linear(place.copy_(packed), scales, 512, None), torch.randn(4, 512).bfloat16()
    weight = packed[:, :512].float() * scales.float()[:, None]
    torch.testing.assert_close(layer(rows).float(), rows.float() @ weight.T, atol=0.2, rtol=2e-2)


@pytest.fixture
def load_calls(monkeypatch):
    """Quantisation config and dtype of each `from_pretrained` call; the model itself is loaded unquantised."""
    seen = []
    real = transformers.LlamaForCausalLM.from_pretrained

    def load(*arguments, quantization_config=None, **options):
        seen.append((quantization_config, options["dtype"]))
        return real(*arguments, **{**options, "device_map": None, "max_memory": None})

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", load)
    return seen


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_only_the_target_is_quantised(llama, load_calls, monkeypatch, name):
    monkeypatch.setattr(quantization.utils, "is_bitsandbytes_available", lambda: True)
    settings = Settings(dtype="bfloat16", offline=True, quantization=name)
    loading.load_pair(Pair("p", str(llama), str(llama)), GPU, settings, True, True)
    (target, dtype), (draft, _) = load_calls
    assert draft is None
    assert (target.load_in_4bit, target.load_in_8bit) == (name == "nf4", name == "int8")
    if name == "nf4":
        assert target.bnb_4bit_quant_type == "nf4"
        assert target.bnb_4bit_compute_dtype is dtype is torch.bfloat16


def quantised_config(**stored):
    config = transformers.LlamaConfig(**SIZES)
    config.quantization_config = stored
    return config


def test_rejects_quantising_a_quantised_checkpoint():
    with pytest.raises(SpecprefillError, match=r"m: quantised already \(gptq\); leave out --quantization nf4"):
        quantization_config("nf4", quantised_config(quant_method="gptq", bits=4), "m", torch.float16)
    assert quantization.checkpoint_method(quantised_config(load_in_4bit=True)) == "bitsandbytes"
    assert quantization.checkpoint_method(transformers.LlamaConfig(**SIZES)) is None


def test_rejects_gptq_folder_without_its_packages(llama):
    quantised_config(quant_method="gptq", bits=4, group_size=128).save_pretrained(llama)
    message = r"^.*: cannot be loaded \(.*(optimum|gptqmodel).*\); check its files"
    with pytest.raises(SpecprefillError, match=message) as raised:
        loading.load_model(str(llama), CPU, "auto", offline=True)
    assert "\n" not in str(raised.value)


def test_memory_estimate_packs_projections_but_not_embeddings():
    config = transformers.LlamaConfig(**SIZES)
    projections = sum(
        module.weight.numel()
        for name, module in build_model("llama").named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    unpacked = empty_model(config).num_parameters() - projections
    assert weight_bytes(config, torch.bfloat16, "int8") == projections + 2 * unpacked
    assert weight_bytes(config, torch.bfloat16, "nf4") == pytest.approx(0.516 * projections + 2 * unpacked, rel=1e-3)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_fingerprint_depends_on_weights_and_not_on_dtype(stored):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES | {"vocab_size": 300}))
    state = {name: value.to(stored) for name, value in model.state_dict().items()}
    fingerprints = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.float().load_state_dict(state)
        fingerprints.add(weights_fingerprint(model.to(dtype)))
    assert len(fingerprints) == 1
    model.float().load_state_dict(state)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert weights_fingerprint(model) not in fingerprints
