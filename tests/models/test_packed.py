"""Packed passes: each sequence gets what it would get by itself, states may share a prefix, the last chunk alone gives logits."""

import torch
import transformers

from specprefill_cli.models.running.adapter import prefill, run, run_pass, run_together
from specprefill_cli.models.running.attention import ATTENTION
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.cache import fork_prefix, layer_keys, new_state, rollback
from specprefill_cli.models.running.passes import ForwardInput, QueryCapture, before_each_pass
from tests.helpers.architectures import build_model, failing, random_tokens

LENGTH = 120
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def filled_state(model, length, stride=1, seed=7):
    """A cache of a prompt whose kept tokens stand at every so many positions."""
    return prefill(model, random_tokens(length, seed), torch.arange(length) * stride, 1_000)[1]


def pass_behind(model, state, length, seed, **options):
    start = int(state.positions[-1]) + 1 if state.length else 0
    tokens, positions = random_tokens(length, seed), torch.arange(start, start + length)
    return ForwardInput(model=model, tokens=tokens, positions=positions, state=state, **options)


def assert_as_alone(packed, apart):
    """Packed passes give the logits of the same passes one by one."""
    for logits, step in zip(run_together(packed), apart, strict=True):
        torch.testing.assert_close(logits, run_pass(step), **CLOSE)


def phases(model):
    """A prefill, a second chunk, a verification and two decoded tokens, behind caches with and without gaps."""
    return [
        pass_behind(model, new_state(), 90, 1),
        pass_behind(model, filled_state(model, 60), 70, 2),
        pass_behind(model, filled_state(model, 70, stride=3), 5, 3, rows=5),
        pass_behind(model, filled_state(model, 80), 1, 4, rows=1),
        pass_behind(model, filled_state(model, 130, stride=2), 1, 5),
    ]


def test_sequences_get_what_they_get_alone(model):
    packed, apart = phases(model), phases(model)
    assert_as_alone(packed, apart)
    for ours, step in zip(packed, apart, strict=True):
        assert torch.equal(ours.state.positions, step.state.positions)
        for layer in range(len(step.state.layers)):
            torch.testing.assert_close(layer_keys(ours.state, layer), layer_keys(step.state, layer), **CLOSE)
            assert ours.state.layers[layer].slots is None


def test_a_pass_may_end_early_and_keep_queries():
    model = build_model("llama")
    captures = [QueryCapture(torch.tensor([61, 64])) for _ in range(4)]
    packed, apart = (
        [
            pass_behind(model, filled_state(model, 60), 8, 1, capture=first, last_layer=1),
            pass_behind(model, filled_state(model, 60, seed=8), 6, 2, capture=second, last_layer=1),
        ]
        for first, second in (captures[:2], captures[2:])
    )
    assert [len(logits) for logits in run_together(packed)] == [0, 0]
    for step in apart:
        run_pass(step)
    for ours, theirs in zip(captures[:2], captures[2:], strict=True):
        torch.testing.assert_close(ours.layer(1), theirs.layer(1), **CLOSE)
    assert [layer.get_seq_length() for layer in packed[0].state.layers] == [68, 68, 60]


def test_each_sequence_has_its_own_local_window():
    model = build_model("llama")
    packed, apart = (
        [
            pass_behind(model, new_state(), 120, 1, local_window=LocalWindow(20, 110)),
            pass_behind(model, new_state(), 100, 2),
        ]
        for _ in range(2)
    )
    assert_as_alone(packed, apart)


def test_a_failed_pass_leaves_all_states_as_they_were():
    model = build_model("llama")
    # A pass over a single token does without the module.
    steps = phases(model)[:3]
    lengths = [step.state.length for step in steps]
    with failing(model.model.layers[1].mlp, RuntimeError):
        raise run_together(steps)[0]
    assert [step.state.length for step in steps] == lengths
    assert_as_alone(steps, phases(model)[:3])


def test_branches_share_a_prefix_and_do_not_disturb_each_other(model):
    prefix = filled_state(model, 80)
    address = prefix.layers[0].keys.data_ptr()
    branches = [fork_prefix(prefix, 80) for _ in range(3)]
    references = [filled_state(model, 80) for _ in range(3)]
    for turn in range(3):
        packed, apart = (
            [pass_behind(model, state, 3 + turn, 10 * turn + n) for n, state in enumerate(states)]
            for states in (branches, references)
        )
        assert_as_alone(packed, apart)
        rollback(branches[turn], 82)
        rollback(references[turn], 82)
    for ours, theirs in zip(branches, references, strict=True):
        torch.testing.assert_close(layer_keys(ours, 0), layer_keys(theirs, 0), **CLOSE)
        assert ours.layers[0].keys.data_ptr() == address


def test_a_branch_may_outgrow_the_buffer_that_it_shares():
    model = build_model("llama")
    prefix = filled_state(model, 50)
    first, second = fork_prefix(prefix, 50), fork_prefix(prefix, 50)
    expected = [run_pass(pass_behind(model, filled_state(model, 50), length, length)) for length in (400, 7)]
    got = [run_pass(pass_behind(model, state, length, length)) for state, length in ((first, 400), (second, 7))]
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert layer_keys(first, 0).shape[1] == 450
    torch.testing.assert_close(layer_keys(first, 0)[:, :50], layer_keys(second, 0)[:, :50])


def test_others_may_act_before_each_pass_of_a_prefill_unless_a_model_is_watched():
    model, seen = build_model("llama"), []
    with before_each_pass(lambda: seen.append(1)):
        prefill(model, random_tokens(9), torch.arange(9), 3)
        with before_each_pass(None):
            run(model, random_tokens(3), torch.arange(3), new_state())
    run(model, random_tokens(3), torch.arange(3), new_state())
    assert len(seen) == 3


def test_earlier_chunks_skip_the_last_layers_mlp(model):
    counts = {0: [], -1: []}
    for number, tokens in counts.items():
        model.get_decoder().layers[number].mlp.register_forward_pre_hook(
            lambda _module, states, tokens=tokens: tokens.append(states[0].shape[1])
        )
    prefill(model, random_tokens(LENGTH), torch.arange(LENGTH), 50)
    assert counts == {0: [50, 50, 20], -1: [20]}


def test_last_layer_queries_are_captured():
    model, ids = build_model("llama"), random_tokens(LENGTH)
    capture, reference = (QueryCapture(torch.tensor([5, 60, LENGTH - 1])) for _ in range(2))
    prefill(model, ids, torch.arange(LENGTH), 50, capture=capture)
    run(model, ids, torch.arange(LENGTH), new_state(), capture=reference)
    last = model.config.num_hidden_layers - 1
    torch.testing.assert_close(capture.layer(last), reference.layer(last), atol=1e-5, rtol=1e-5)


def test_model_with_unknown_layer_names_runs_in_chunks():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8_192, n_embd=32, n_layer=2, n_head=2, n_positions=256)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    ids = random_tokens(LENGTH)
    logits, state = prefill(model, ids, torch.arange(LENGTH), 50)
    expected = run(model, ids, torch.arange(LENGTH), new_state())
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert state.length == LENGTH
