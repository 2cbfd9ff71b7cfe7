"""The adapter's network: gradients, agreement with transformers, and PEFT's format."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specprefill_cli.training.smollm2.network import AdaptedModel, MergedLinear, Rank
from specprefill_cli.training.smollm2.rows import ChatRow

RANK = Rank(rank=4, alpha=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def make_adapted_model(folder, seed=1):
    model = AdaptedModel(folder, RANK)
    model.reset(seed)
    torch.manual_seed(seed)
    model.parameters += 0.05 * torch.randn(len(model.parameters))
    model.update()
    return model


def make_row(tokens, segments=None, answers=(), positions=None):
    tokens = torch.as_tensor(tokens)
    answers = torch.tensor(answers, dtype=torch.long)
    return ChatRow(
        tokens=tokens,
        positions=torch.arange(len(tokens)) if positions is None else torch.as_tensor(positions),
        segments=torch.zeros(len(tokens), dtype=torch.long) if segments is None else torch.as_tensor(segments),
        answers=answers,
        targets=tokens[answers + 1],
        weights=torch.ones(len(answers)),
    )


def test_gradients_are_those_of_separate_adapters():
    torch.manual_seed(2)
    x, base = torch.randn(7, 6, requires_grad=True), torch.randn(9, 6)
    down = torch.randn(4, 6, requires_grad=True)
    ups = [torch.randn(5, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)]
    low, high = down.split(2)
    expected = x @ base.T + 0.5 * torch.cat([x @ low.T @ ups[0].T, x @ high.T @ ups[1].T], dim=1)
    merged = base + 0.5 * torch.cat([ups[0] @ low, ups[1] @ high])
    computed = MergedLinear.apply(x, merged.detach(), down, 0.5, *ups)
    torch.testing.assert_close(computed, expected)
    weights = torch.randn_like(expected)
    inputs = [x, down, *ups]
    for gradient, reference in zip(
        torch.autograd.grad((computed * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(gradient, reference)


def test_logits_agree_with_transformers(folder):
    model = make_adapted_model(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for layer in model.layers:
        for name, parameter in reference.model.layers[layer].named_modules():
            full = f"model.layers.{layer}.{name}"
            if f"{full}.lora_A.weight" in model.places:
                low, high = (model.view(model.parameters, f"{full}.lora_{matrix}.weight") for matrix in "AB")
                parameter.weight.data += RANK.scale * (high @ low)
    tokens = torch.randint(0, 96, (24,))
    expected = reference(tokens[None]).logits[0, [20, 22]]
    computed = model.logits(make_row(tokens, answers=[20, 22]))
    assert torch.cosine_similarity(computed, expected).min() > 0.999


def test_questions_do_not_see_each_other(folder):
    model = make_adapted_model(folder)
    shared, first, second = torch.randint(0, 96, (3, 10))
    separate = model.logits(make_row(torch.cat([shared, second]), answers=[15, 18]))
    together = model.logits(
        make_row(
            torch.cat([shared, first, second]),
            segments=[0] * 10 + [1] * 10 + [2] * 10,
            positions=[*range(10), *range(10, 20), *range(10, 20)],
            answers=[25, 28],
        )
    )
    torch.testing.assert_close(together, separate, atol=0.05, rtol=0.05)


def test_training_lowers_the_loss_of_a_row(folder):
    model = make_adapted_model(folder)
    example = make_row(torch.randint(0, 96, (20,)), answers=[15, 16, 17])
    rows, tokens, first, weight = model.accumulate(example).tolist()
    assert (rows, tokens, weight) == (1, 20, 3)
    optimizer = torch.optim.AdamW([model.parameters], lr=1e-2)
    for _ in range(20):
        model.parameters.grad = model.gradient.clone()
        optimizer.step()
        model.update()
        model.gradient.zero_()
        last = float(model.accumulate(example)[2])
    assert last < 0.5 * first


def test_an_adapter_survives_being_saved(folder, tmp_path):
    model = make_adapted_model(folder)
    model.save(tmp_path, "base")
    other = AdaptedModel(folder, RANK)
    other.load(tmp_path)
    assert torch.equal(other.parameters, model.parameters.bfloat16().float())
