"""Linear layers through oneDNN: the same sums, only where they suit, and never for those who measure torch's own."""

import pytest
import torch
from torch import nn

from specprefill_cli.lab.benchmarks.peers import transformers_peer
from specprefill_cli.models import linear
from specprefill_cli.models.linear import OneDnnLinear, suits, torch_linears, use_onednn

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)


@pytest.fixture
def for_all_sizes(monkeypatch):
    monkeypatch.setattr(linear, "SMALLEST_PRODUCT", 0)


def layer(inputs=48, outputs=80, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 48), (1, 700, 48), (2, 3, 48), (1, 0, 48), (48,)])
def test_the_products_are_torchs(faster, for_all_sizes, bias, shape):
    wanted, ours = layer(bias=bias), nn.Sequential(layer(bias=bias))
    use_onednn(ours)
    assert type(ours[0]) is OneDnnLinear
    states = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(ours(states), wanted(states), atol=1e-5, rtol=1e-5)


@needs_onednn
def test_states_that_are_not_contiguous_are_read_right(faster, for_all_sizes):
    ours = nn.Sequential(layer())
    use_onednn(ours)
    cut, turned = torch.randn(1, 9, 96)[..., :48], torch.randn(1, 48, 9).transpose(1, 2)
    with torch.inference_mode():
        for states in (cut, turned):
            torch.testing.assert_close(ours(states), layer()(states), atol=1e-5, rtol=1e-5)


@needs_onednn
def test_small_products_and_gradients_are_left_to_torch(faster, monkeypatch):
    ours = nn.Sequential(layer(bias=False))
    use_onednn(ours)
    called = []
    monkeypatch.setattr(nn.Linear, "forward", lambda self, states: called.append(len(states)) or states)
    monkeypatch.setattr(linear, "SMALLEST_PRODUCT", 7 * 48 * 80)
    with torch.no_grad():
        ours(torch.randn(6, 48))
        assert called == [6]
        assert ours(torch.randn(7, 48)).shape == (7, 80)
        assert called == [6]
    ours(torch.randn(7, 48))
    assert called == [6, 7]


def test_only_plain_float32_layers_on_the_cpu_suit():
    class Special(nn.Linear):
        pass

    offloaded = layer()
    offloaded._hf_hook = object()
    others = [Special(4, 4), offloaded, layer().to(torch.bfloat16), layer().to("meta"), nn.LayerNorm(4)]
    assert suits(layer())
    assert not any(suits(other) for other in others)


def test_nothing_changes_where_onednn_is_not_faster(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    model = nn.Sequential(layer())
    use_onednn(model)
    assert type(model[0]) is nn.Linear


def test_torchs_own_layers_come_back_even_after_a_failure(faster):
    model = nn.Sequential(layer(), nn.ReLU(), layer())
    use_onednn(model)

    def fail():
        with torch_linears(model):
            assert [type(part) for part in model] == [nn.Linear, nn.ReLU, nn.Linear]
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert [type(part) for part in model] == [OneDnnLinear, nn.ReLU, OneDnnLinear]


@needs_onednn
def test_the_peer_reads_with_torchs_own_layers(random_pair, faster, monkeypatch):
    use_onednn(random_pair.target.model)
    seen = []
    monkeypatch.setattr(
        OneDnnLinear, "forward", lambda self, states: seen.append(True) or nn.Linear.forward(self, states)
    )
    transformers_peer(random_pair.target).read(torch.arange(3, 40))
    assert not seen
    with torch.no_grad():
        random_pair.target.model.get_output_embeddings()(torch.zeros(1, random_pair.target.config.hidden_size))
    assert seen


@needs_onednn
def test_loaded_models_use_it_where_it_is_faster(tiny_session):
    kinds = {type(part) for part in tiny_session.pair.target.model.modules() if isinstance(part, nn.Linear)}
    assert kinds == {OneDnnLinear if linear.onednn_is_faster() else nn.Linear}
