"""The start of the program: its imports, and how its threads wait."""

import os
import re
from pathlib import Path

import pytest

import specprefill_cli
from specprefill_cli.models.machine.memory import BOUNDED_SPIN, WAIT_SETTINGS
from tests.helpers.programs import run_main
from tests.helpers.samples import HANDBOOK

GUIDE = Path(specprefill_cli.__file__).resolve().parents[1] / "docs" / "guide.md"
# Optional imports of transformers, and imports of other readers and reports.
OPTIONAL = set("torchvision scipy sklearn pandas matplotlib openpyxl docx pptx tiktoken".split())


def test_a_question_runs_through_the_modules_of_the_guide_and_imports_no_optional_ones():
    done = run_main("ask", HANDBOOK, "When does the canteen open?", "--max-new-tokens", "4")
    drawing = GUIDE.read_text(encoding="utf-8").split("One `ask` from the command line")[1].split("```")[1]
    drawn = {f"specprefill_cli.{name.replace('/', '.')}" for name in re.findall(r"([a-z_0-9/]+)\.py", drawing)}
    assert len(drawn) > 12
    assert {"transformers.models.llama.modeling_llama", *drawn} <= done.modules
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
