"""The study on a random pair: its controls, and what checkpoint tokens observe; and the command."""

import json

import pytest
import torch

from specprefill_cli.draft_kv.checkpoints import checkpoint_slots, copy_slots
from specprefill_cli.draft_kv.mapped_cache import inspect, score_and_map
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.lab.study.measurements import BUDGETS, study
from specprefill_cli.lab.study.signals import OBSERVABLE, observe
from specprefill_cli.lab.study.summary import stability, summary
from specprefill_cli.settings import Settings
from tests.helpers.samples import write_jsonl
from tests.lab.study.test_equal_cost import TEXT, item

SETTINGS = Settings(scorer="question", look_ahead=1, mode="draft-kv")
ITEMS = [item(0), item(1, TEXT[30:] + " It rains.")]


def test_native_kv_keeps_the_first_token_and_controls_do_not(random_session):
    figures = summary(study(random_session, ITEMS, SETTINGS, lambda _: None), [True, False])
    variants = figures["variants"]
    assert variants["native"]["kl_mean"] < 1e-4
    assert variants["native"]["same_first_token"] == 1
    assert variants["wrong document"]["kl_mean"] > 1e-3
    assert variants["mapped only"]["kl_mean"] > 1e-3
    assert variants["zeros"]["kl_mean"] != variants["wrong document"]["kl_mean"]
    assert len(figures["true_error_by_layer_and_depth"]) == 3
    # KV of the first layer is exact because it depends on the tokens alone.
    assert max(figures["true_error_by_layer_and_depth"][0]) < 1e-6
    assert min(figures["true_error_by_layer_and_depth"][1]) > 0.1
    errors = figures["true_error_by_layer"]
    assert errors["keys"] != errors["values"]
    mean = torch.tensor(figures["true_error_by_layer_and_depth"]).mean(1)
    torch.testing.assert_close((torch.tensor(errors["keys"]) + torch.tensor(errors["values"])) / 2, mean)
    assert figures["answer_changed"] == 0.5
    assert {signal["signal"] for signal in figures["signals"] if signal["observable"]} == {*OBSERVABLE, "risk"}
    budgets = figures["first_token_by_budget"]
    assert [row["recompute"] for row in budgets if row["chosen_by"] == "random"] == list(BUDGETS)
    assert budgets[0]["kl_median"] == budgets[len(BUDGETS)]["kl_median"]


def test_few_questions_give_no_correlations(random_session):
    studies = study(random_session, ITEMS, SETTINGS, lambda _: None)
    few, enough = (summary(studies * count, [True, False] * count) for count in (9, 10))
    for figures, expected in ((few, False), (enough, True)):
        signal = next(signal for signal in figures["signals"] if signal["signal"] == "risk")
        by_layer = figures["spearman_checkpoint_to_true_error_by_layer"]["error"]
        assert (figures["spearman_risk_to_kl"] is not None) == (signal["spearman_to_kl"] is not None) == expected
        assert any(value is not None for value in by_layer) == expected
    assert few["true_error_by_layer"]["keys"] == pytest.approx(enough["true_error_by_layer"]["keys"])


def test_stability_ignores_exact_layers():
    figures = stability(torch.tensor([0.0, 0.1, 0.2, 0.4, 0.6]))
    assert figures["lower_half_error"] == pytest.approx(0.15)
    assert figures["upper_half_error"] == pytest.approx(0.5)
    assert figures["spearman_layer_to_error"] == pytest.approx(1)
    assert stability(torch.zeros(3))["lower_half_error"] is None


def test_observing_checkpoint_tokens_leaves_kv_unchanged(random_session):
    """A second pass over the tokens that `inspect` computed writes the same KV and observes each layer at each checkpoint."""
    request = random_session.request(ITEMS[0].collection, ITEMS[0].question, SETTINGS)
    scores, state = score_and_map(request, find_map(request, "draft-kv"))
    seen = inspect(request, state, scores.importance)
    everything = torch.arange(request.prompt.length)
    before = copy_slots(state, everything)
    checkpoints = checkpoint_slots(request.prompt.document, scores.importance)
    observed = observe(request, state, seen.computed, checkpoints)
    for old, new in zip(before.layers, copy_slots(state, everything).layers, strict=True):
        torch.testing.assert_close(old, new)
    assert [tuple(states.shape) for states in observed.states] == [(len(checkpoints), 64)] * 3
    assert observed.queries.layer(2).shape[1] == len(checkpoints)


@pytest.mark.slow
def test_study_writes_json_plots_and_html(call, random_session, tmp_path, monkeypatch):
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
    assert {row["n"] for row in record["equal_cost"]["rows"]} == {2}
    assert len(record["first_token_by_budget"]) == 2 * len(BUDGETS)
    plots = ("error_by_layer_and_depth", "error_by_layer", "kl_by_budget", "kl_by_token")
    assert {path.name for path in out.iterdir()} == {"study.json", "study.html", *(f"{name}.svg" for name in plots)}
    assert (out / "study.html").read_text().count("<svg") == 4
    assert "same tokens, rest dropped" in printed
