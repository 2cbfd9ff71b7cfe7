"""The start of the program: its imports, and how its threads wait."""

import os

import pytest

from specprefill_cli.models.machine.memory import BOUNDED_SPIN, WAIT_SETTINGS
from tests.helpers.programs import run_main
from tests.helpers.samples import HANDBOOK

# Optional imports of transformers, and imports of other readers and reports.
OPTIONAL = set("torchvision scipy sklearn pandas matplotlib openpyxl docx pptx tiktoken".split())


def test_a_question_imports_nothing_that_it_does_not_need():
    done = run_main("ask", HANDBOOK, "When does the canteen open?", "--json", "--max-new-tokens", "4")
    assert "transformers.models.llama.modeling_llama" in done.modules
    assert not OPTIONAL & done.modules


def test_help_imports_nothing_heavy():
    done = run_main("--help")
    assert "ask" in done.out
    assert not {"torch", "transformers", "tokenizers", "numpy", "pypdf", "bs4", "accelerate"} & done.modules


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, BOUNDED_SPIN),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "10000"}, {"GOMP_SPINCOUNT": "10000"}),
        ({"KMP_BLOCKTIME": "200"}, {"KMP_BLOCKTIME": "200"}),
    ],
)
def test_idle_threads_spin_briefly_unless_the_user_says_otherwise(settings, expected):
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS} | settings
    done = run_main("config", "show", environment=environment)
    assert {name: value for name, value in done.environment.items() if name in WAIT_SETTINGS} == expected
