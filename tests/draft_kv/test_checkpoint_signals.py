"""The signals of checkpoint tokens on every architecture: the model's own attention, no error for the target's own KV."""

import pytest
import torch

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.draft_kv.checkpoints import SIGNALS, causal_output, copy_slots
from specprefill_cli.draft_kv.mapped_cache import inspect, score_and_map
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.draft_kv.raw_kv import attention_module
from specprefill_cli.models.adapter import prefill, window_layers
from specprefill_cli.models.passes import QueryCapture
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8


@torch.inference_mode()
def test_attention_of_checkpoints_is_the_models(model):
    """With all tokens as checkpoints, it must equal what the model computes."""
    ids, positions = torch.randint(3, 8_000, (70,), generator=torch.Generator().manual_seed(3)), torch.arange(70)
    outputs, queries = [], QueryCapture(positions)
    handle = attention_module(model, 0).o_proj.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0]))
    _, state = prefill(model, ids, positions, 1_000, queries)
    handle.remove()
    ours = causal_output(queries, 0, copy_slots(state, positions), window_layers(model.config)[0])
    torch.testing.assert_close(ours.transpose(0, 1).flatten(1), outputs[0][0], atol=1e-4, rtol=1e-4)


def test_captured_queries_can_be_cut_to_some_tokens():
    queries = torch.arange(12.0).view(1, 6, 2)
    capture = QueryCapture(torch.arange(6) + 10, {0: [queries[:, :4], queries[:, 4:]]}, {0: 0.5})
    cut = capture.at(torch.tensor([11, 15]))
    assert torch.equal(cut.layer(0), queries[:, [1, 5]])
    assert cut.scaling == {0: 0.5}


@pytest.mark.parametrize("random_pair", sorted(set(ARCHITECTURES) - {"mistral"}), indirect=True)
@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_are_zero_for_native_kv_and_high_for_a_bad_map(random_session, signal):
    collection = Collection((one_page_document("doc", TEXT, "text/plain"),))
    request = random_session.request(collection, "When?", Settings(scorer="question", look_ahead=1))
    scores, mapped = score_and_map(request, find_map(request, "draft-kv"))
    native = MODES["full"].prefill(request).state
    bad, none = (inspect(request, state, scores.importance, signal) for state in (mapped, native))
    assert none.errors.shape == none.mass.shape == bad.errors.shape
    assert none.errors.abs().max() < 1e-5
    # The first layer is exact; a random map makes every other one wrong.
    assert bad.errors[0].max() < 1e-5
    assert (bad.errors[1:].mean(1) > 0.01).all()
