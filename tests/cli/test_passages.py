import json
import subprocess
import sys

import pytest

HANDBOOK = "sample_docs/harbour-handbook.pdf"
QUESTION = "What mileage allowance does the company pay if you use your own car?"


def test_best_passages_hold_the_answer_in_document_order(call):
    code, out, _ = call("passages", HANDBOOK, QUESTION, "--top", "4", "--json")
    record = json.loads(out)
    assert code == 0
    assert any("42 pence" in passage["text"] for passage in record["passages"])
    places = [passage["start"] for passage in record["passages"]]
    assert places == sorted(places)
    assert record["kept_words"] < record["document_words"] / 10
    assert len(record["passages"]) <= 4


def test_keep_ratio_bounds_the_text_and_ends_at_sentences(call):
    words = []
    for keep in ("0.05", "0.3"):
        _, out, _ = call("passages", HANDBOOK, QUESTION, "--keep", keep)
        assert "42 pence" in out
        assert f"[{HANDBOOK}, page 8]" in out
        words.append(len(out.split()))
    assert words[0] < words[1] / 2


def test_lexical_passages_need_no_draft(call):
    code, out, _ = call("passages", HANDBOOK, QUESTION, "--scorer", "lexical", "--top", "2")
    assert code == 0
    assert "42 pence" in out


def test_top_must_be_positive(call):
    assert call("passages", HANDBOOK, QUESTION, "--top", "0")[0] == 2


@pytest.mark.slow
def test_passages_can_be_piped_to_another_program():
    first = subprocess.run(
        [sys.executable, "-m", "specprefill_cli", "passages", HANDBOOK, QUESTION, "--top", "1"],
        capture_output=True,
        check=True,
    )
    echo = "import sys; print('context:', len(sys.stdin.read().split()) > 5, 'question:', sys.argv[1])"
    second = subprocess.run([sys.executable, "-c", echo, QUESTION], input=first.stdout, capture_output=True, check=True)
    assert second.stdout.decode().strip() == f"context: True question: {QUESTION}"
