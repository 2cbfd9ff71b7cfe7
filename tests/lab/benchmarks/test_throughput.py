"""`bench throughput`: arrivals, figures under a clock of our own, rates that rise up to the limit, and the command."""

import pytest

from specprefill_cli.engine.request import Done, Piece
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks import throughput
from specprefill_cli.lab.benchmarks.throughput import Traffic, bench_throughput, holds, poisson_arrivals
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.settings import Settings


class OneServer:
    """Answers one question after the other: a second to the first piece of text, and one more to the second."""

    def __init__(self):
        self.now = 0.0
        self.waiting = []

    @property
    def busy(self):
        return bool(self.waiting)

    def submit(self, _number, on_event):
        self.waiting.append([on_event, 0])

    def step(self):
        self.now += 1
        on_event, pieces = self.waiting[0]
        self.waiting[0][1] += 1
        on_event(Piece("x"))
        if pieces == 1:
            self.waiting.pop(0)
            on_event(Done("xx"))

    def sleep(self, seconds):
        self.now += seconds


def test_figures_begin_with_the_arrival():
    server = OneServer()
    traffic = Traffic(server, server.submit, lambda: server.now, server.sleep)
    traffic.run([1.0, 1.5, 10.0])
    assert traffic.load(0.5) == pytest.approx(
        {"rate": 0.5, "arriving": 9 / 11, "ttft_median": 1.0, "ttft_p95": 2.35, "gap_median": 1.0, "gap_p95": 1.0}
    )


def test_a_rate_holds_only_where_answers_keep_up_with_it():
    load = {"arriving": 0.9, "ttft_median": 0.5}
    assert holds(load, 0.5)
    assert not holds(load, 0.4)
    assert not holds(load | {"arriving": 0.5}, 0.5)


def test_arrivals_are_the_same_draws_at_every_rate():
    slow, fast = poisson_arrivals(200, 1.0), poisson_arrivals(200, 4.0)
    assert slow == pytest.approx([4 * time for time in fast])
    assert slow[-1] == pytest.approx(200, rel=0.2)


def test_rates_rise_until_the_limit_is_passed(random_session, monkeypatch):
    figures = iter([0.2, 0.9, 1.1, 5.0])
    monkeypatch.setattr(Traffic, "load", lambda _, rate: {"rate": rate, "arriving": 1.0, "ttft_median": next(figures)})
    settings = Settings(max_new_tokens=2, scorer="lexical")
    cases = [Configuration("full"), Configuration("select", 0.2, "lexical")]
    rows = bench_throughput(random_session, 300, cases, [2], 2, 1.0, settings, lambda _text: None)
    first, second, third = [load["rate"] for load in rows[0]["loads"]]
    assert rows[0]["rate"] == second == pytest.approx(throughput.GROWTH * first)
    assert third > second
    assert len(rows[1]["loads"]) == 1
    assert (rows[0]["ratio"], rows[1]["rate"], rows[1]["ratio"]) == (1.0, None, None)
    with pytest.raises(UsageError, match="one question alone takes"):
        bench_throughput(random_session, 300, cases, [1], 2, 1e-6, settings, lambda _text: None)


@pytest.mark.slow
def test_command_finds_a_rate(call_json, monkeypatch):
    # Each rate so much higher than the last that few are tried.
    monkeypatch.setattr(throughput, "GROWTH", 1_000.0)
    arguments = "--length 400 --modes full --requests 8 --limit 1 --max-new-tokens 40 --concurrency 1 --json"
    (row,) = call_json("bench", "throughput", *arguments.split())["rows"]
    assert (row["mode"], row["concurrency"], len(row["loads"]) >= 1) == ("full", "1", True)
