"""Trials of the recipe: what each rung changes in rows and models, and a small ladder from end to end."""

import json
import lzma
import random
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.resources import BUNDLED_FOLDER
from specprefill_cli.training import ladder
from specprefill_cli.training.__main__ import app
from specprefill_cli.training.batches import make_batch
from specprefill_cli.training.export import export_pair
from specprefill_cli.training.recipe import Recipe, TrainSettings
from specprefill_cli.training.rows import RowMaker
from specprefill_cli.training.rungs import BASELINE, RUNGS
from specprefill_cli.training.selection import DraftChoice
from specprefill_cli.training.shapes import PAIR_SHAPES
from specprefill_cli.training.sources import prompt_format
from specprefill_cli.training.synthesis import NOT_FOUND
from specprefill_cli.training.tokenizer import load_tokenizer
from specprefill_cli.training.train import Trainer, keep_settings
from tests.helpers.written_questions import GROUPS, PASSAGES, PLACES


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(BUNDLED_FOLDER / "target")


@pytest.fixture
def tokenizer_files(tmp_path):
    """A folder with the bundled tokenizer as the step `tokenizer` writes it."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in ("target/tokenizer.json", "target/tokenizer_config.json", "tokenizer.tiktoken"):
        shutil.copy(BUNDLED_FOLDER / file, folder)
    return folder


def maker(tokenizer, recipe, **options):
    return RowMaker(tokenizer, prompt_format(), PASSAGES, GROUPS, 16_384, 3, recipe, **options)


def texts_of(rows, maker):
    """Document and everything behind it, row by row."""
    return [maker.tokenizer.decode(row.tokens).split("\n\nQuestion:", 1) for row in rows]


def document_rows(maker, count=40, length=1_024, written=1.0):
    return [maker.document_row(length, written) for _ in range(count)]


def test_every_rung_makes_batches(tokenizer):
    for rung in RUNGS.values():
        batch = make_batch(maker(tokenizer, Recipe(**rung.recipe)), 0.9, 2_048)
        assert batch.tokens.numel()
        assert TrainSettings(minutes=1, **rung.training)


def test_written_questions_are_asked_a_limited_number_of_times(tokenizer):
    limited = maker(tokenizer, Recipe(most_asked=2))
    document_rows(limited)
    assert max(limited.asked.values()) == 2
    free = maker(tokenizer, Recipe())
    document_rows(free)
    assert max(free.asked.values()) > 10


def test_question_stands_on_both_sides(tokenizer):
    both = maker(tokenizer, Recipe(question_first=True))
    asked = 0
    for row in document_rows(both, written=0.5):
        text = tokenizer.decode([token for token in row.tokens if token != both.pad])
        document = text.removeprefix(tokenizer.decode(both.writer.prefix))
        for question in text.split("Question: ")[2:]:
            assert document.startswith(f"Question: {question.splitlines()[0]}\n\n")
            asked += 1
    assert asked > 20


def test_absent_questions_are_a_share_of_all(tokenizer):
    ratios = {}
    for absent in (0.0, 0.25):
        rows = texts_of(document_rows(maker(tokenizer, Recipe(absent=absent)), 150), maker(tokenizer, Recipe()))
        answers = [
            part.split("Answer:")[1] for _, *rest in rows for part in "".join(rest).split("\n\nQuestion:") if part
        ]
        ratios[absent] = sum(answer.strip().startswith(NOT_FOUND) for answer in answers) / len(answers)
    assert ratios[0.0] < 0.05
    assert 0.12 < ratios[0.25] < 0.28


def test_thinned_documents_hold_the_chunks_that_are_chosen(tokenizer):
    calls = []

    def choose(text, question, most):
        calls.append((text, question, most))
        return [2, 0]

    chosen = maker(tokenizer, Recipe(selected=1.0, thinned=1.0), choose_chunks=choose)
    row = chosen.document_row(1_024, 1.0)
    ((text, question, most),) = calls
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    prefix = len(chosen.writer.prefix)
    assert row.tokens[prefix : prefix + 64] == ids[:32] + ids[64:96]
    gaps = [int(step) for step in row.positions[prefix + 1 : prefix + 64] - row.positions[prefix : prefix + 63]]
    assert gaps[31] > 32
    assert most > 2
    assert question


@pytest.mark.slow
def test_draft_chooses_the_chunk_that_the_question_is_about():
    filler = " ".join(random.Random(1).sample(" ".join(PASSAGES).split(), 300))
    text = f"{filler} The mooring fee of Skagen is 42 pence per metre. {filler}"
    chosen = DraftChoice(BUNDLED_FOLDER)(text, "What is the mooring fee of Skagen?", 3)
    ids = load_tokenizer(BUNDLED_FOLDER / "target").encode(text, add_special_tokens=False)
    place = next(number for number, (start, _) in enumerate(ids.offsets) if start >= text.index("42 pence"))
    assert place // 32 in chosen


def test_dropout_changes_training_but_not_evaluation(tmp_path):
    settings = TrainSettings(minutes=1, compile=False, dropout=0.5)
    trainer = Trainer(PAIR_SHAPES["smoke"], settings, tmp_path)
    tokens, positions = torch.arange(5, 45)[None], torch.arange(40)[None]
    for name, differs in (("target", True), ("draft", False)):
        model = trainer.pair[name]
        first, second = (model(tokens, positions, None)[0] for _ in range(2))
        assert torch.equal(first, second) != differs
        model.eval()
        assert torch.equal(*(model(tokens, positions, None)[0] for _ in range(2)))


def test_mean_of_the_weights_is_kept_saved_and_exported(tokenizer, tokenizer_files, tmp_path):
    settings = TrainSettings(minutes=1, compile=False, average=0.5, draft_every=0)
    trainer = Trainer(PAIR_SHAPES["smoke"], settings, tmp_path)
    batches = [make_batch(maker(tokenizer, Recipe()), 0.5, 512) for _ in range(2)]
    name = "model.layers.0.mlp.up_proj.weight"
    seen = []
    for batch in batches:
        trainer.step(batch)
        seen.append(trainer.pair["target"].state_dict()[name].clone())
    expected = (seen[0] + seen[1]) / 2
    torch.testing.assert_close(trainer.weights("target")[name], expected)
    trainer.save()
    again = Trainer(PAIR_SHAPES["smoke"], settings, tmp_path)
    torch.testing.assert_close(again.weights("target")[name], expected)
    export_pair(tmp_path / "checkpoint.pt", tokenizer_files, PAIR_SHAPES["smoke"], tmp_path / "out")
    exported = load_file(tmp_path / "out" / "target" / "model.safetensors")[name]
    torch.testing.assert_close(exported.float(), expected, atol=1e-4, rtol=1e-3)


@pytest.fixture
def small(tmp_path, tokenizer_files):
    """Data of a few rows, and a pair with random weights to begin with."""
    for name in ("pretrain", "qa", "dev"):
        (tmp_path / name).mkdir()

    def write(path, rows):
        with lzma.open(tmp_path / path, "wt") as out:
            out.write("\n".join(json.dumps(row) for row in rows))

    write("pretrain/a.jsonl.xz", [{"text": passage} for passage in PASSAGES * 3])
    write(
        "qa/q.jsonl.xz",
        [
            {"context": passage, "question": f"Who opened {place}?", "answers": ["the council"], "verbatim": True}
            for place, passage in zip(PLACES, PASSAGES, strict=True)
        ],
    )
    dev = [
        {
            "id": n,
            "context": f"Gate {n} of the farm is green.",
            "question": f"Colour of gate {n}?",
            "answers": ["green"],
        }
        for n in range(25)
    ]
    write("dev/squad11_dev.jsonl.xz", dev)
    trainer = Trainer(PAIR_SHAPES["smoke"], TrainSettings(minutes=1, compile=False), tmp_path)
    trainer.save()
    export_pair(tmp_path / "checkpoint.pt", tokenizer_files, PAIR_SHAPES["smoke"], tmp_path / "start")
    return tmp_path


@pytest.mark.slow
def test_ladder_logs_a_line_for_each_rung_and_prints_a_table(small, monkeypatch):
    def climb(*rungs):
        arguments = {
            "data": small,
            "run": small / "run",
            "start": small / "start",
            "shape": "smoke",
            "minutes": 0.05,
            "questions": 5,
            "tokens-per-batch": 1_024,
            "workers": 0,
            "characters": 100_000,
            "rungs": ",".join(rungs),
        }
        return CliRunner().invoke(app, ["ladder", *(part for k, v in arguments.items() for part in (f"--{k}", str(v)))])

    result = climb("mean")
    assert result.exit_code == 0, result.output
    log = small / "run" / "ladder.jsonl"
    baseline, mean = map(json.loads, log.read_text().splitlines())
    assert (baseline["rung"], mean["rung"]) == (BASELINE, "mean")
    assert mean["changes"]["training"] == {"average": 0.99}
    assert baseline["protocol"] == mean["protocol"]
    assert {name: len(scores) for name, scores in mean["scores"].items()} == {ladder.ALONE: 5, ladder.AMONG: 2}
    assert baseline["figures"][ladder.ALONE]["f1_delta"] == [0, 0, 0]
    assert mean["tokens"] > 0
    lines = [line for line in result.output.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines] == ["rung", "---", BASELINE, "mean"]
    # What is known under the same protocol is not trained again.
    monkeypatch.setattr(ladder, "train", None)
    assert climb("mean").output.splitlines()[-4:] == result.output.splitlines()[-4:]
    assert len(log.read_text().splitlines()) == 2
    result = climb("nothing")
    assert result.exit_code == 2
    assert "nothing: unknown" in result.output


def small_protocol():
    return ladder.Protocol(
        shape="smoke",
        start="",
        minutes=1,
        questions=3,
        tokens_per_batch=1,
        rate=1e-3,
        characters=1,
        workers=0,
        device="cpu",
        seed=1,
    )


def test_differences_are_paired_with_the_baseline(tmp_path):
    protocol = small_protocol()
    base = ladder.Trial(
        rung=BASELINE, changes={}, protocol=protocol, steps=1, tokens=1, scores={"a": [0.0, 50.0, 100.0]}
    )
    better = replace(base, rung="better", scores={"a": [10.0, 60.0, 110.0]})
    assert ladder.figures(better, base)["a"]["f1_delta"] == (10.0, 10.0, 10.0)
    trials = {BASELINE: base, "better": better}
    rungs = [replace(RUNGS[BASELINE], name=name) for name in ("better", BASELINE)]
    outcomes = ladder.run_ladder(rungs, protocol, tmp_path / "log.jsonl", lambda rung: trials[rung.name])
    assert [trial.rung for trial, _ in outcomes] == [BASELINE, "better"]
    assert ladder.read_trials(tmp_path / "log.jsonl") == [base, better]
    # Other questions, or another clock, are another comparison.
    other = replace(protocol, questions=4)
    again = ladder.run_ladder(rungs[1:], other, tmp_path / "log.jsonl", lambda _rung: replace(base, protocol=other))
    assert again[0][0].protocol == other


def test_a_changed_rung_is_run_again(tmp_path):
    protocol = small_protocol()
    trial = ladder.Trial(rung=BASELINE, changes={}, protocol=protocol, steps=1, tokens=1, scores={"a": [0.0]})
    rung = RUNGS[BASELINE]
    log = tmp_path / "log.jsonl"
    ladder.run_ladder([rung], protocol, log, lambda rung: replace(trial, changes=rung.changes))
    ladder.run_ladder([rung], protocol, log, pytest.fail)
    changed = replace(rung, training={"dropout": 0.2})
    assert protocol.folder(rung) != protocol.folder(changed)
    ((again, _),) = ladder.run_ladder([changed], protocol, log, lambda rung: replace(trial, changes=rung.changes))
    assert again.changes["training"] == {"dropout": 0.2}


def test_a_run_is_not_resumed_with_other_settings(tmp_path):
    values = {"shape": {}, "settings": {"rate": 1e-3, "minutes": 1}, "start": None}
    keep_settings(tmp_path, values)
    keep_settings(tmp_path, values | {"settings": {"rate": 2e-3, "minutes": 1}})
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    keep_settings(tmp_path, values | {"settings": {"rate": 2e-3, "minutes": 5}})
    with pytest.raises(SpecprefillError, match=r"other settings \(rate, start\)"):
        keep_settings(tmp_path, values | {"start": "other"})
