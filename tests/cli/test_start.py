"""The start of the program: its imports, and how its threads wait."""

import json
import os
import subprocess
import sys

import pytest

from specprefill_cli.models.memory import BOUNDED_SPIN, WAIT_SETTINGS
from specprefill_cli.resources import packaged_folder

HANDBOOK = str(packaged_folder("sample_docs") / "harbour-handbook.pdf")
# Optional imports of transformers, and imports of other readers and reports.
HEAVY = (
    "torchvision",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "openpyxl",
    "docx",
    "pptx",
    "tiktoken",
)
REPORT_AT_EXIT = """
import atexit, json, os, sys
from specprefill_cli.cli.main import main
atexit.register(lambda: print(json.dumps([sorted(sys.modules), dict(os.environ)]), file=sys.stderr))
main()
"""


def run_main(*arguments: str, **settings: str) -> tuple[list[str], dict[str, str]]:
    """Run the program, and return its modules and environment at exit."""
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_SETTINGS} | settings
    result = subprocess.run(
        [sys.executable, "-c", REPORT_AT_EXIT, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    modules, environment = json.loads(result.stderr.splitlines()[-1])
    return modules, environment


def test_a_question_imports_nothing_that_it_does_not_need():
    modules, _ = run_main("ask", HANDBOOK, "When does the canteen open?", "--json", "--max-new-tokens", "4")
    assert "transformers.models.llama.modeling_llama" in modules
    assert [name for name in HEAVY if name in modules] == []


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
    _, environment = run_main("config", "show", **settings)
    assert {name: environment[name] for name in WAIT_SETTINGS if name in environment} == expected
