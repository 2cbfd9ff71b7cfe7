"""The study on a random pair: its controls, the drift over a forced continuation, and the command."""

import json

import pytest
import torch

from specprefill_cli.lab.study.drift import Drift, continuation, drift, drift_row, kl_rows
from specprefill_cli.lab.study.measurements import BUDGETS, study
from specprefill_cli.lab.study.summary import summary
from specprefill_cli.models.running.adapter import prefill, run
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.samples import write_jsonl
from tests.lab.study.test_equal_cost import TEXT, item

SETTINGS = Settings(scorer="question", look_ahead=1, mode="draft-kv")
ITEMS = [item(0), item(1, TEXT[30:] + " It rains.")]


def test_native_kv_keeps_the_first_token_and_controls_do_not(random_session):
    studies = study(random_session, ITEMS, SETTINGS, lambda _: None)
    figures = summary(studies, [True, False])
    variants = figures["variants"]
    assert variants["native"]["kl_mean"] < 1e-4
    assert variants["native"]["same_first_token"] == 1
    assert variants["wrong document"]["kl_mean"] > 1e-3
    assert variants["mapped only"]["kl_mean"] > 1e-3
    assert variants["zeros"]["kl_mean"] != variants["wrong document"]["kl_mean"]
    errors = figures["true_error_by_layer"]
    assert errors["keys"] != errors["values"]
    for part in errors.values():
        # KV of the first layer is exact because it depends on the tokens alone.
        assert part[0] < 1e-6
        assert min(part[1:]) > 0.1
    assert figures["answer_changed"] == 0.5
    budgets = figures["first_token_by_budget"]
    assert [row["recompute"] for row in budgets if row["chosen_by"] == "random"] == list(BUDGETS)
    assert budgets[0]["kl_median"] == budgets[len(BUDGETS)]["kl_median"]


def test_full_prefill_does_not_drift_from_itself_and_a_shorter_one_does(random_session):
    settings = Settings(scorer="question", look_ahead=1)
    request = random_session.request(item().collection, "When?", settings)
    model, tokens = request.target.model, request.prompt.tokens
    result = MODES["full"].prefill(request)
    first_choice = frozenset({int(result.logits.argmax())})
    for stop_tokens, answer_tokens in ((frozenset({0}), 12), (first_choice, 1)):
        reference = continuation(model, result.state, result.logits, stop_tokens, count=12)
        assert not set(reference.tokens.tolist()) & stop_tokens
        assert reference.answer_tokens == answer_tokens
        same = drift(model, result.state, result.logits, reference)
        assert (same.parted, same.answer_changed) == (None, False)
        assert max(same.kl) < 1e-4
        assert result.state.length == len(tokens)
    kept = torch.cat([torch.arange(8), torch.arange(len(tokens) - 20, len(tokens))])
    logits, state = prefill(model, tokens[kept], kept, 1_024)
    other = drift(model, state, logits, reference)
    assert state.length == len(kept)
    assert len(other.kl) == 12
    # By hand: the second token's distributions, behind the first forced token at the position after the prompt.
    place = torch.tensor([len(tokens)])
    rows = [run(model, reference.tokens[:1], place, part) for part in (result.state, state)]
    assert other.kl[1] == pytest.approx(float(kl_rows(*(row.log_softmax(-1) for row in rows))), rel=1e-2, abs=1e-5)
    assert other.kl[1] > 10 * max(same.kl)


def test_answers_that_part_are_counted_by_length():
    drifts = [Drift(kl=(0.5, 1.5), parted=parted, answer_changed=parted == 0) for parted in (0, 3, 15, None)]
    row = drift_row("x", drifts)
    assert row["parted_after"] == {"1": 0.25, "4": 0.5, "16": 0.75, "64": 0.75}
    assert row["kl_by_token"] == [0.5, 1.5]
    assert (row["kl_mean"], row["answer_changed"]) == (1.0, 0.25)


@pytest.mark.slow
def test_study_writes_json_and_plots(call, random_session, tmp_path, monkeypatch):
    monkeypatch.setattr("specprefill_cli.answering.session.open_session", lambda *_args, **_options: random_session)
    monkeypatch.setattr("specprefill_cli.lab.session.LONGEST_ANSWER", 3)
    texts = ("The north gate opens at nine. " * 16, "Rain fell on the harbour all day. " * 12)
    rows = [{"id": str(n), "context": text, "question": "When?", "answers": ["nine"]} for n, text in enumerate(texts)]
    questions = write_jsonl(tmp_path / "questions.jsonl", *rows)
    out = tmp_path / "a" / "study"
    options = "--answers 2 --distractors 0 --scorer question --look-ahead 1 --quiet"
    code, printed, _ = call("study", questions, "--out", str(out), *options.split())
    assert code == 0
    record = json.loads((out / "study.json").read_text())
    assert record["schema"] == 1
    assert record["questions"] == 2
    rows = record["equal_cost"]["rows"]
    assert {row["n"] for row in rows} == {2}
    assert [row["first_token_kl"] for row in rows if row["name"] == "full"] == [0]
    assert len(record["equal_cost"]["duels"]) == 4
    assert len(record["first_token_by_budget"]) == 2 * len(BUDGETS)
    plots = ("error_by_layer", "kl_by_budget", "kl_by_token")
    assert {path.name for path in out.iterdir()} == {"study.json", *(f"{name}.svg" for name in plots)}
    assert "same tokens, rest dropped" in printed
