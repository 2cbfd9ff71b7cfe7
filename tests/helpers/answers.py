"""A finished answer, for tests of reports."""

from specprefill_cli.record import Fate, Record, SpanRecord


def make_answer(**values):
    """Make an answer of mode `select` with one kept span. `values` replace its fields."""
    fields = {
        "id": "",
        "question": "q",
        "answer": "42 pence",
        "mode": "select",
        "reason": None,
        "draft": "d",
        "target": "t",
        "prompt_tokens": 100,
        "kept_tokens": 40,
        "kept_ratio": 0.4,
        "ttft_seconds": 0.4,
        "startup_seconds": 2.0,
        "phases": {"draft_prefill": 0.3, "mapping": 0.0, "target_prefill": 0.1},
        "spans": [SpanRecord(start=0, end=32, fate=Fate.RECOMPUTE, pages=[1], risk=None)],
        "generated_tokens": 3,
        "tokens_per_second": 10.0,
        "acceptance_rate": None,
        "peak_memory_bytes": None,
        "citations": [],
        "warnings": [],
        "stopped": "stop",
    }
    return Record(**fields | values)
