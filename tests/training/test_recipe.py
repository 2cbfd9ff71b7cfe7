"""The recipe end to end: batches, guided losses, a run that resumes, an export that loads."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specprefill_cli.training import corpus
from specprefill_cli.training.__main__ import app
from specprefill_cli.training.batches import Batch, make_batch
from specprefill_cli.training.cloze import cloze, cloze_block
from specprefill_cli.training.network import SHAPES, ProbeTargets, new_model, pointer_loss, region_loss
from specprefill_cli.training.rows import load_maker
from specprefill_cli.training.synthesis import NOT_FOUND, FactBook, fact_block, key_value_block, table_block
from specprefill_cli.training.train import batch_losses, export_draft, load_teacher, train_draft
from specprefill_cli.training.updates import Schedule
from tests.helpers.samples import write_jsonl

PROSE = (
    "The mill stands by the river and has done so for many years. Farmers brought their grain along the old road. "
    "In spring the water rises and the wheel turns faster than the miller likes. Nobody remembers who built the bridge."
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("pretrain", "qa", "dev"):
        (folder / name).mkdir()

    words = PROSE.split()
    shuffled = [" ".join(random.Random(seed).sample(words, len(words))) for seed in range(60)]
    write_jsonl(folder / "pretrain" / "a.jsonl.xz", *({"text": text + "\n" + PROSE} for text in shuffled))
    secret = "alpha beta gamma delta epsilon zeta eta theta iota"
    write_jsonl(folder / "dev" / "d.jsonl.xz", {"context": secret, "question": "What is it?", "answers": ["beta"]})
    asked = {"context": PROSE, "question": "Where does the mill stand?", "answers": ["by the river"]}
    leaked = {"context": f"Note: {secret}.", "question": "Which letter?", "answers": ["gamma"]}
    rows = [{**asked, "verbatim": True}, {**leaked, "verbatim": True}, {**asked, "verbatim": False}]
    write_jsonl(folder / "qa" / "q.jsonl.xz", *rows)
    return folder


@pytest.fixture(scope="module")
def maker(data):
    return load_maker(data, characters_per_file=100_000)


def test_drops_questions_and_text_that_share_eight_words_with_dev(data):
    groups, dropped = corpus.question_groups(data, corpus.dev_grams(data))
    assert dropped == 1
    assert [group.context for group in groups] == [PROSE]
    assert groups[0].questions == (("Where does the mill stand?", "by the river", PROSE.index("by the river")),)
    for forbidden, dropped in ((corpus.word_grams(PROSE), True), (set(), False)):
        assert dropped != any(PROSE[:100] in text for text in corpus.stream_text(data, 100_000, forbidden))


def test_synthesised_answers_stand_at_their_positions():
    book, rng = FactBook(), random.Random(0)
    seen = absent = 0
    for number in range(300):
        domain = rng.choice(book.domains)
        blocks = fact_block(book, domain, PROSE, 4, rng, set()), table_block(book, rng), key_value_block(book, rng)
        block = blocks[number % 3]
        for question in block.questions:
            if question.answer == NOT_FOUND:
                absent += 1
            else:
                assert block.text[question.start : question.start + len(question.answer)] == question.answer
            assert "{" not in question.text + question.answer
            seen += 1
        assert "{" not in block.text
    assert seen > 1_000
    assert 5 < absent < 0.1 * seen


@pytest.mark.parametrize("progress", [0.0, 0.2, 0.6, 0.9])
def test_pointers_lead_to_the_predicted_token(maker, progress):
    maker.rng.seed(1)
    copied = pointers = 0
    for _ in range(4):
        batch = make_batch(maker, progress, 2_048)
        assert batch.positions.max() < 16_384
        assert (batch.positions.diff(dim=1) > 0).all()
        probes = batch.probes
        for row, (queries, targets) in enumerate(zip(probes.pointer_queries, probes.pointer_targets, strict=True)):
            for query, target in zip(queries.tolist(), targets.tolist(), strict=True):
                if query >= 0:
                    assert target < query
                    copied += int(batch.tokens[row, query + 1] == batch.tokens[row, target])
                    pointers += 1
        assert not set(batch.answers.tolist()) & set(batch.texts.tolist())
        assert (batch.tokens.flatten()[batch.texts + 1] != maker.pad).all()
    # Only a first token may differ from its copy, by the blank before it.
    assert copied > 0.5 * pointers


def test_guided_losses_are_small_only_for_right_attention():
    keys = torch.eye(8)[None] * 40
    queries = torch.zeros(1, 8, 8)
    queries[0, 6, 2] = 40
    probes = ProbeTargets(
        region_queries=torch.tensor([[[6]]]),
        region_bounds=torch.tensor([[[2, 4]]]),
        pointer_queries=torch.tensor([[6]]),
        pointer_targets=torch.tensor([[2]]),
    )
    assert region_loss(queries, keys, probes) < 1e-3
    assert pointer_loss(queries, keys, probes) < 1e-3
    probes.region_bounds[:] = torch.tensor([4, 6])
    probes.pointer_targets[:] = 5
    assert region_loss(queries, keys, probes) > 10
    assert pointer_loss(queries, keys, probes) > 10


@pytest.mark.slow
def test_a_draft_learns_and_transformers_loads_it(maker, tmp_path, monkeypatch):
    maker.rng.seed(1)
    shape, run, batch = SHAPES["smoke"], tmp_path / "run", make_batch(maker, 0.3, 256)
    assert batch.answers.numel()
    monkeypatch.setattr("specprefill_cli.training.train.make_batch", lambda *_: batch)
    none, some = (Schedule(updates=updates, cooldown=1, rate=1e-2, warmup=1) for updates in (0, 12))
    before = train_draft(maker, shape, none, 256, tmp_path / "untrained", compiled=False)
    after = train_draft(maker, shape, some, 256, run, compiled=False)
    losses = [batch_losses(model, load_teacher(), batch) for model in (before, after)]
    assert all(losses[1][name] < losses[0][name] for name in ("answer", "text", "imitation"))
    export_draft(run / "checkpoint.pt", shape, tmp_path / "plain")
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    doubled = tmp_path / "doubled" / "model.safetensors"
    doubled.parent.mkdir()
    save_file({key: 2 * value for key, value in plain.items()}, doubled)
    export_draft(run / "checkpoint.pt", shape, tmp_path / "mean", doubled.parent, 0.75)
    for key, mean in load_file(tmp_path / "mean" / "model.safetensors").items():
        torch.testing.assert_close(mean.float(), 1.25 * plain[key].float(), atol=1e-4, rtol=2e-3)
    continued = train_draft(maker, shape, none, 256, tmp_path / "new", tmp_path / "plain", compiled=False)
    tokens, positions = torch.arange(5, 45)[None], torch.arange(0, 80, 2)[None]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    with torch.no_grad():
        logits = continued.logits(continued(tokens, positions, None)[0])
    expected = loaded(tokens, position_ids=positions, attention_mask=torch.ones_like(tokens)).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_rows_of_a_batch_have_the_losses_of_rows_one_by_one(maker):
    """Other rows of the batch and padding do not change the losses of a row."""
    maker.rng.seed(1)
    batch = make_batch(maker, 0.3, 2_048)
    assert (batch.tokens == maker.pad).any()
    rows, length = batch.tokens.shape
    model, teacher = new_model(SHAPES["smoke"]), load_teacher()
    together = batch_losses(model, teacher, batch)
    summed = {"answer": 0.0, "text": 0.0}
    for row in range(rows):
        used = int((batch.tokens[row] != maker.pad).sum())
        indices = {}
        for name in ("answers", "texts"):
            flat = getattr(batch, name)
            indices[name] = flat[(flat >= row * length) & (flat < (row + 1) * length)] - row * length
        tokens, positions = (part[row : row + 1, :used] for part in (batch.tokens, batch.positions))
        losses = batch_losses(model, teacher, Batch(tokens=tokens, positions=positions, probes=None, **indices))
        summed["answer"] += losses["answer"].item() * len(indices["answers"])
        summed["text"] += losses["text"].item() * len(indices["texts"])
    assert summed["answer"] / len(batch.answers) == pytest.approx(together["answer"].item(), rel=1e-4)
    assert summed["text"] / len(batch.texts) == pytest.approx(together["text"].item(), rel=1e-4)


def test_cloze_questions_ask_for_pieces_of_the_text():
    text = (
        "The bridge over the Tamar was opened by Prince Albert in 1859 after six years of work. It cost £225,000 and "
        "carried two tracks. Trains from Plymouth crossed it at 10:30 on 2 May 1859 for the first time."
    )
    rng = random.Random(0)
    questions = [question for _ in range(60) for question in cloze_block(text, 3, rng).questions]
    assert {"1859", "Prince Albert", "£225,000", "2 May 1859"} <= {question.answer for question in questions}
    for question in questions:
        assert text[question.start : question.start + len(question.answer)] == question.answer
        assert question.answer not in question.text or question.answer in text[: question.start]
    assert cloze("Nothing here can be asked for, it seems to me.", rng) is None


def test_cloze_asks_for_noun_phrases_but_not_for_verbs():
    rng = random.Random(1)
    sentence = "Many people came from far away to look at the old stone mill of this quiet valley."
    questions = [question for _ in range(40) if (question := cloze(sentence, rng))]
    assert {question.answer for question in questions} == {"old stone mill"}
    assert cloze("Long before anybody knew him well he was living in this quiet valley.", rng) is None


@pytest.mark.slow
def test_the_commands_make_a_draft(data, tmp_path):
    from typer.testing import CliRunner

    folders = ["--data", str(data), "--run", str(tmp_path)]
    small = "--shape smoke --updates 2 --tokens-per-batch 256 --characters 100000".split()

    for arguments in (
        ["draft", *folders, *small],
        ["export", *folders[2:], "--out", str(tmp_path / "exported"), *small[:2]],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert (tmp_path / "exported" / "model.safetensors").is_file()
