"""The pair of Qwen2.5-Coder on its official GGUF files, where they are in the hub's cache."""

import pytest

from specprefill_cli.models.sources.refs import ModelRef
from tests.helpers.samples import HANDBOOK, QUESTION

PAIR = "qwen2.5-coder-1.5b"
pytestmark = [
    pytest.mark.qwen,
    pytest.mark.slow,
    pytest.mark.skipif(
        any(ModelRef(f"Qwen/Qwen2.5-Coder-{size}-Instruct-GGUF").file is None for size in ("0.5B", "1.5B")),
        reason="the files are not in the hub's cache",
    ),
]


@pytest.mark.parametrize("options", [(), ("--quantization", "none"), ("--speculate", "4", "--proposer", "draft")])
def test_the_handbook_is_answered_in_each_form(call_json, options):
    answer = call_json("ask", HANDBOOK, QUESTION, "--pair", PAIR, *options)
    assert answer["mode"] == "select"
    assert "42 pence" in answer["answer"]
    assert answer["kept_ratio"] < 0.2


def test_what_the_handbook_does_not_say_is_not_found(call_json):
    answer = call_json("ask", HANDBOOK, "What is the wifi password of the canteen?", "--pair", PAIR)
    assert answer["answerable"] is False
