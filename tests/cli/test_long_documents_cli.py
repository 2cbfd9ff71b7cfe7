"""The commands on a document beyond the context of `tiny`."""

import pytest

from tests.answering.test_long_documents import varied_prose
from tests.helpers.samples import read_jsonl

SELECT = ("--mode", "select", "--keep", "0.05", "--max-new-tokens", "8", "--quiet")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A document of about 18,000 tokens, with the answer in the middle."""
    prose = varied_prose(7)
    cut = prose.index(". ", len(prose) // 2) + 2
    path = tmp_path_factory.mktemp("long") / "report.md"
    path.write_text(f"{prose[:cut]}The secret code of the north tower is 7315. {prose[cut:]}", encoding="utf-8")
    return path


def test_batch_reads_a_long_document_once_for_all_rows(call, report):
    questions = b"What is the secret code of the north tower?\nHow long may the cable be?\n"
    _, out, _ = call("batch", "--document", str(report), *SELECT, stdin=questions)
    rows = read_jsonl(out)
    assert [(row["mode"], row["positions"]) for row in rows] == [("select", "compact")] * 2
    assert rows[0]["answer"] == "7315"
    assert 0 < rows[0]["position_factor"] < 1
    assert [row["reused"] for row in rows] == [[], ["document tokens", "draft document KV"]]


def test_bench_prefill_refuses_full_and_measures_select(call, call_json):
    sizes = ("--lengths", "17000", "--keep", "0.05", "--repeat", "1", "--no-baseline", "--json")
    (row,) = call_json("bench", "prefill", *sizes, "--modes", "select")["rows"]
    assert (row["mode"], row["speedup"]) == ("select", None)
    assert row["kept_ratio"] < 0.1
    code, _, err = call("bench", "prefill", *sizes, "--modes", "full,select")
    assert code == 1
    assert "context of 16,384;" in err
    assert "use --mode select" in err


def test_the_page_and_the_table_show_compact_positions(call, report, tmp_path):
    page = tmp_path / "page.html"
    code, _, err = call("ask", str(report), "How long may the cable be?", *SELECT[:-1], "--html", str(page))
    assert code == 0
    assert "compact, gaps between kept spans x 0." in err
    assert "compact, gaps between kept spans x 0." in page.read_text(encoding="utf-8")


def test_bench_needles_counts_right_answers(call, call_json, report):
    arguments = ("bench", "needles", "--text", str(report), "--limit", "2", "--kept-tokens", "1000", "--quiet")
    rows = call_json(*arguments, "--lengths", "2000,17000")["rows"]
    assert [(row["length"], row["n"]) for row in rows] == [(2_000, 2), (17_000, 2)]
    assert all(0.7 * row["length"] < row["prompt_tokens"] < 1.3 * row["length"] for row in rows)
    assert all(row["kept_tokens"] <= 1_000 for row in rows)
    assert sum(row["right"] for row in rows) >= 2
    code, _, err = call(*arguments, "--lengths", "900000")
    assert code == 2
    assert "--text has only about" in err
