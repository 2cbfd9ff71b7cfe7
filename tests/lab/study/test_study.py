"""The study on a random pair: its conditions and controls, its rows in a file, its figures, and the command."""

import json

import pytest
import torch

from specprefill_cli.draft_kv.mapped_cache import score_and_map
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.statistics import TOO_FEW
from specprefill_cli.lab.study import conditions, controls, figures
from specprefill_cli.lab.study.conditions import MAPPED, RECOMPUTED, study_question
from specprefill_cli.lab.study.drift import drift, run_forced
from specprefill_cli.lab.study.journal import measure_items
from specprefill_cli.lab.study.question import full_prefill
from specprefill_cli.lab.study.summary import summary
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of, write_jsonl

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8
SETTINGS = Settings(scorer="question", look_ahead=1, mode="draft-kv")


def item(number=0, text=TEXT):
    return Item(str(number), f"When, number {number}?", ("nine",), collection_of(text), (0, 10))


def study_of(session, number=0, text=TEXT):
    return full_prefill(session, item(number, text), SETTINGS)


def test_native_kv_answers_like_full_prefill_and_controls_do_not(random_session):
    random_session.settings = SETTINGS
    wrong = study_of(random_session, 1, "Rain fell on the harbour all day. " * 30).native
    row = json.loads(json.dumps(study_question(study_of(random_session, text=TEXT * 4), random_session, wrong)))
    results, errors = row["results"], row["errors"]
    assert results["native"]["kl"] < 1e-4
    assert not results["native"]["changed"]
    # Layers and spans of this small model coincide in other conditions.
    different = [MAPPED, "zeros", "another document", "document dropped", "keys mapped", "values mapped"]
    different += [name for name in results if "recomputed" in name or name.startswith("select")]
    assert min(results[name]["kl"] for name in different) > 1e-4
    # Here both choosers are the same session.
    different.remove("select 0.15 by question")
    assert len({results[name]["kl"] for name in different}) == len(different) == 16
    assert {name: list(kept) for name, kept in row["kept"].items()} == {
        name: ["0.1", "0.15", "0.3", "0.5"] for name in ("question", "paper")
    }
    for part in ("keys", "values"):
        # KV of the first layer is exact because it depends on the tokens alone.
        assert errors[part][0] < 1e-6
        assert min(errors[part][1:]) > 0.1
    assert len(errors["attention output"]) == len(errors["keys"])
    tokens = [results[f"select {keep:g}"]["tokens"] for keep in conditions.KEEPS]
    assert tokens == sorted(set(tokens))
    assert results[f"{RECOMPUTED}, rest dropped"]["tokens"] < results[RECOMPUTED]["tokens"] == results["full"]["tokens"]
    steps = ("draft and map", "checkpoints", RECOMPUTED, f"suffix of {RECOMPUTED}")
    assert results[RECOMPUTED]["seconds"] == pytest.approx(sum(row["seconds"][step] for step in steps))


def test_drift_is_measured_on_the_answer_of_full_prefill(random_session):
    """By hand: the forced tokens behind the same cache, whose state ends with the suffix afterwards."""
    study = study_of(random_session)
    request, model = study.request, study.request.target.model
    assert 0 < len(study.answer.tokens) <= 12
    state = controls.cache_of(study.native)
    end = request.prompt.document[1]
    logits = run_forced(model, state, request.prompt.tokens[end:], end, study.answer)
    assert state.length == request.prompt.length
    torch.testing.assert_close(logits.log_softmax(-1), study.answer.log_probabilities, atol=1e-3, rtol=1e-3)
    same = drift(study.answer, logits)
    assert max(same.kl) < 1e-4
    assert (same.changed, same.same, same.margin) == (False, len(same.kl), pytest.approx(study.answer.margin, abs=1e-3))
    assert drift(study.answer, logits.roll(1, -1)).changed
    later = torch.cat([logits[:2], logits[2:].roll(1, -1)])
    assert drift(study.answer, later).same == 2


def test_wrong_document_is_never_the_same_text():
    items = [item(0), item(1), item(2, "Another text altogether."), item(3)]
    assert [controls.other_document(items, number).identifier for number in range(4)] == ["2", "2", "3", "2"]
    assert controls.other_document(items[:2], 0) is None
    # A document that is long enough is preferred to a nearer one.
    assert controls.other_document([item(0), item(1, "Short."), item(2, TEXT[::-1])], 0).identifier == "2"


def test_shorter_wrong_document_is_repeated_to_fill_every_slot(random_session):
    """Any KV left of the right document would make the control look better than it is."""
    right, wrong = (
        study_of(random_session).native,
        study_of(random_session, 1, "Rain fell on the harbour all day.").native,
    )
    start, end = study_of(random_session).request.prompt.document
    replaced = controls.splice_document(wrong, right, (start, end))
    for (keys, values), (old_keys, old_values), other in zip(replaced.layers, right.layers, wrong.layers, strict=True):
        torch.testing.assert_close(keys[:, :start], old_keys[:, :start])
        torch.testing.assert_close(values[:, :start], old_values[:, :start])
        document = range(start, len(wrong.slots))
        repeated = [document[place % len(document)] for place in range(end - start)]
        assert end - start > 2 * len(document)
        torch.testing.assert_close(keys[:, start:end], other[0][:, repeated])
        torch.testing.assert_close(values[:, start:end], other[1][:, repeated])


def test_layers_and_slots_are_exchanged_where_asked(random_session):
    study = study_of(random_session)
    _, state = score_and_map(study.request, find_map(study.request, "draft-kv"))
    mapped = controls.keep_slots(controls.copy_cache(state), study.native.slots)
    mixed = controls.exchange_layers(study.native, mapped, range(1, 2))
    assert [torch.equal(ours[0], own[0]) for ours, own in zip(mixed.layers, study.native.layers, strict=True)] == [
        number != 1 for number in range(len(mixed.layers))
    ]
    exact = study.with_exact(mapped).layers[1][1]
    assert torch.equal(exact[:, study.exact], study.native.layers[1][1][:, study.exact])
    assert torch.equal(exact[:, len(study.exact) :], mapped.layers[1][1][:, len(study.exact) :])


def test_a_stopped_measurement_goes_on_with_the_next_question(tmp_path):
    path, asked, told = tmp_path / "rows.jsonl", [], []

    def measure(question):
        asked.append(question.identifier)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"id": question.identifier, "call": len(asked)}

    items = [item(number) for number in range(4)]
    with pytest.raises(KeyboardInterrupt):
        measure_items(path, items, measure, told.append)
    # The last row may be cut off where the process was killed.
    path.write_text(path.read_text() + '{"id": "2", "ca')
    rows = measure_items(path, items, measure, told.append)
    assert asked == ["0", "1", "2", "2", "3"]
    assert [row["call"] for row in rows] == [1, 2, 4, 5]
    assert told[-1].startswith("question 2 of 2, 0 minutes left")


def row_with(kl, f1, changed, risk):
    """A row with `select` at two keep ratios, which takes 1 and 3 seconds, and draft KV, which takes 2."""

    def result(kl, seconds, f1, changed=False):
        return {"kl": kl, "kl_answer": kl, "changed": changed, "seconds": seconds, "f1": f1, "tokens": 1, "margin": 1.0}

    results = {"full": result(0.0, 5.0, 100), "select 0.1": result(1.0, 1.0, 20), "select 0.5": result(0.2, 3.0, 60)}
    results |= {RECOMPUTED: result(kl, 2.0, f1, changed), "zeros": {"kl": 2.0, "kl_answer": 2.0, "changed": True}}
    errors = {"keys": [0.0, kl]}
    row = {"id": "0", "tokens": 700, "results": results, "signals": {"risk": risk, "none": 0.0}, "errors": errors}
    return row | {"kept": {"paper": {"0.1": changed, "0.5": None}}}


def test_summary_compares_with_select_at_equal_time():
    rows = [row_with(0.5 + 0.2 * (number % 2), 30, number % 2 == 1, number % 2) for number in range(20)]
    record = summary(rows)
    by_name = {row["name"]: row for row in record["conditions"]}
    drafted = by_name[RECOMPUTED]
    assert (drafted["kl"], drafted["changed"], drafted["time_ratio"]) == (pytest.approx(0.6), 50, 0.4)
    # At 2 seconds `select` has a KL of 0.6 and an F1 of 40.
    assert (drafted["kl_select"], drafted["f1_select"], drafted["f1_delta"]) == (pytest.approx(0), -10, -70)
    assert drafted["kl_select_low"] < 0 < drafted["kl_select_high"]
    assert (by_name["zeros"]["f1"], by_name["zeros"]["seconds"], by_name["full"]["kl_select"]) == (None, None, 0)
    risk, constant = record["signals"]
    assert (risk["auroc"], risk["auroc_low"], risk["changed"], constant["auroc"]) == (1.0, 1.0, 10, 0.5)
    kept, unknown = record["choosers"]
    assert (kept["name"], kept["keep"], kept["n"], kept["kept"]) == ("paper", 0.1, 20, 50)
    assert (unknown["n"], unknown["kept"]) == (0, None)
    assert record["errors"] == {"keys": [0, pytest.approx(0.6)]}
    assert record["drift"] == []


def test_drift_counts_answers_that_are_long_enough():
    rows = [row_with(0.5, 30, True, 1) for _ in range(4)]
    for same, row in zip((1, 10, 20, 20), rows, strict=True):
        row["results"][RECOMPUTED] |= {"same": same, "kl_tokens": [0.1] * 15 + [same / 10] * 5}
    rows[3]["results"][RECOMPUTED]["kl_tokens"] = [0.1] * 3
    told = {row["tokens"]: (row["n"], row["diverged"], round(row["kl"], 6)) for row in summary(rows)["drift"]}
    assert told == {
        1: (4, 0, 0.1),
        4: (3, pytest.approx(100 / 3), 0.1),
        16: (3, pytest.approx(200 / 3), round(3.1 / 3, 6)),
    }


@pytest.mark.slow
def test_study_writes_rows_tables_and_plots_and_goes_on(call, random_session, tmp_path, monkeypatch):
    random_session.settings = SETTINGS.varied(mode="select")
    monkeypatch.setattr("specprefill_cli.answering.session.open_session", lambda *_args, **_options: random_session)
    texts = ("The north gate opens at nine. " * 16, "Rain fell on the harbour all day. " * 12)
    rows = [{"id": str(n), "context": text, "question": "When?", "answers": ["nine"]} for n, text in enumerate(texts)]
    questions, out = write_jsonl(tmp_path / "questions.jsonl", *rows), tmp_path / "a" / "study"
    command = ("study", questions, "--out", str(out), *"--distractors 0 --scorer question --look-ahead 1 -q".split())
    code, printed, _ = call(*command)
    assert code == 0
    assert f"No verdicts: {TOO_FEW}." in printed
    assert "riskiest recomputed" in printed
    assert {path.name for path in out.iterdir()} == {
        *("questions.jsonl", "study.json", "error_by_layer.svg", "kl_by_time.svg")
    }
    first = (out / "questions.jsonl").read_text()
    assert call(*command)[1] == printed
    assert (out / "questions.jsonl").read_text() == first
    code, _, err = call(*command, "--chunk-size", "8")
    assert (code, "other settings" in err) == (1, True)
    # `paper` and the controls are in no line.
    lines = []
    monkeypatch.setattr(figures, "line_plot", lambda *labels_and_lines: lines.append(labels_and_lines[-1]))
    figures.study_plots(json.loads((out / "study.json").read_text()))
    assert [len(line.points) for line in lines[1]] == [4, 2]


def test_refuses_questions_about_a_single_text(random_session, tmp_path):
    with pytest.raises(SpecprefillError, match="all questions are about the same text"):
        conditions.study_items(
            random_session, random_session, [item(), item(1)], SETTINGS, tmp_path / "rows.jsonl", lambda _: None
        )
