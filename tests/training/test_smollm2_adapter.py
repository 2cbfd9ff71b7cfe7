"""The adapter's network: gradients, agreement with the product, and a run that resumes."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specprefill_cli.models.sources.lora import merge_adapter, read_adapter
from specprefill_cli.training.smollm2.adapter import SCALE, AdaptedLinear, AdaptedModel
from specprefill_cli.training.smollm2.rows import ChatRow
from specprefill_cli.training.updates import Schedule, run_updates


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    return path


def make_adapted_model(folder):
    torch.manual_seed(1)
    model = AdaptedModel(folder)
    for adapter in model.adapters.values():
        adapter.data += 0.02 * torch.randn(adapter.shape)
    model.merge()
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


def test_gradients_are_those_of_a_separate_adapter():
    torch.manual_seed(2)
    layer, x = AdaptedLinear(torch.nn.Linear(6, 9, bias=False)), torch.randn(7, 6, requires_grad=True)
    torch.nn.init.normal_(layer.lora_B.weight)
    layer.merge()
    expected = x @ layer.base.T + SCALE * layer.lora_B(layer.lora_A(x))
    computed = layer(x)
    torch.testing.assert_close(computed, expected, atol=0.05, rtol=0.01)
    weights, inputs = torch.randn_like(expected), [x, layer.lora_A.weight, layer.lora_B.weight]
    for gradient, reference in zip(
        *(torch.autograd.grad((output * weights).sum(), inputs) for output in (computed, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, reference, atol=0.05, rtol=0.01)


def test_logits_are_those_of_the_product_with_the_saved_adapter(folder, tmp_path, processor_dtype):
    model = make_adapted_model(folder)
    model.save(tmp_path, "base")
    product = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    merge_adapter(product, read_adapter(tmp_path, "mine"))
    tokens = torch.randint(0, 96, (24,))
    expected = product(tokens[None]).logits[0, [20, 22]]
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


def test_training_lowers_the_loss_and_resumes_where_it_ended(folder, tmp_path):
    """Half of the updates, then the rest, end like all of them at once."""

    def train(place, *ends):
        for updates in ends:
            model = make_adapted_model(folder)
            schedule = Schedule(updates=updates, cooldown=1, rate=2e-2, warmup=1)
            example = make_row(torch.arange(20), answers=[15, 16, 17])

            def losses(_rng, _progress, model=model, example=example):
                model.merge()
                yield model.losses(example)[0].mean()

            run_updates(
                model.adapters, [torch.optim.AdamW(model.adapters.values())], schedule, tmp_path / place, losses
            )
        return model, [json.loads(line) for line in (tmp_path / place / "log.jsonl").read_text().splitlines()]

    (whole, log), (resumed, _) = train("whole", 20), train("resumed", 10, 20)
    values = [row["loss"] for row in log if "loss" in row]
    assert values[-1] < 0.5 * values[0]
    for name, adapter in whole.adapters.items():
        torch.testing.assert_close(resumed.adapters[name], adapter, atol=2e-3, rtol=0.05)
