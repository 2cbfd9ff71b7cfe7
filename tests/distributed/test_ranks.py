"""Tensor parallelism over gloo processes: the same tokens as one process, and a clear error when a rank is lost."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import specprefill_cli
from specprefill_cli.models.sources.pairs import FOLDER_VARIABLE
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.random_pairs import random_calibrated_pair, save_pair
from tests.helpers.rank_answers import QUESTION, SHARED_BY_FOUR, TEXT, answers, collection, other_architectures

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parent.with_name("helpers")
# In seconds; guards against a hang only.
TIMEOUT = 300
CLI = ("-m", "specprefill_cli")
ASK = ("ask", "-", QUESTION, "--mode", "select", "--keep", "0.3", "--max-new-tokens", "8")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*arguments, **environment):
    root = str(Path(specprefill_cli.__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as logs:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "TMPDIR": logs, **environment},
            input=TEXT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )


@pytest.fixture(scope="module")
def single_process_answers(tiny_session):
    return json.loads(json.dumps(answers(tiny_session)))


@pytest.fixture(scope="module")
def two_rank_answers():
    result = run(HELPERS / "rank_answers.py", 2, "all")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def assert_same(ours, expected):
    """The same tokens, fates and reuse, and importance within rounding: sums over ranks have another order."""
    assert set(ours) == set(expected)
    for name, answer in expected.items():
        assert ours[name]["importance"] == pytest.approx(answer["importance"], abs=1e-4), name
        exact = set(answer) - {"importance"}
        assert {key: ours[name][key] for key in exact} == {key: answer[key] for key in exact}, name


def test_two_ranks_match_tokens_fates_and_importance_of_one_process(single_process_answers, two_rank_answers):
    ours, expected = (
        {name: value for name, value in results.items() if name != "interrupted"}
        for results in (two_rank_answers, single_process_answers)
    )
    assert_same(ours, expected)
    assert all(len(answer["tokens"]) == 8 for answer in expected.values())
    assert {fate for answer in expected.values() for _, _, fate in answer["spans"]} == {"recompute", "drop"}


FOUR = {"num_key_value_heads": 4}
# The draft reads in parts.
SHORT = {"max_position_embeddings": 256}
# Architecture, and changes to the sizes of draft and target.
PAIRS = {
    **{name: (name, {}, {}) for name in ARCHITECTURES},
    "four heads": ("llama", FOUR, FOUR),
    "short draft": ("llama", SHORT, {}),
}


@pytest.fixture(scope="module")
def pairs(tokenizer, tmp_path_factory):
    """A folder with pairs, the folder of their scoring heads, and the answers of one process."""
    folder = tmp_path_factory.mktemp("pairs")
    calibration = folder.with_name("calibration")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(calibration))
        for name, (architecture, draft_sizes, target_sizes) in PAIRS.items():
            save_pair(random_calibrated_pair(architecture, tokenizer, draft_sizes, target_sizes), folder / name)
        return folder, calibration, json.loads(json.dumps(other_architectures(1, folder)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_architecture_matches_one_process_with_the_target_divided(pairs, ranks):
    folder, calibration, expected = pairs
    result = run(HELPERS / "rank_answers.py", ranks, folder, **{FOLDER_VARIABLE: str(calibration)})
    assert result.returncode == 0, result.stderr
    ours = json.loads(result.stdout)
    names = PAIRS if ranks == 2 else SHARED_BY_FOUR
    assert_same(ours, {name: answer for name, answer in expected.items() if name.startswith(tuple(names))})


def test_ctrl_c_stops_the_answer_on_all_ranks_but_not_the_session(single_process_answers, two_rank_answers):
    for results in (single_process_answers, two_rank_answers):
        interrupted = results["interrupted"]
        assert interrupted["interrupted"]
        assert 1 < len(interrupted["tokens"]) < 8
        assert results["first of two"]["tokens"][: len(interrupted["tokens"])] == interrupted["tokens"]


def test_dead_rank_ends_the_run_with_one_line():
    result = run(HELPERS / "rank_answers.py", 2, "SIGKILL")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("specprefill: rank 1 stopped answering: its process ended with signal 9 (logs: ")
    assert line.endswith("the run has ended, start it again")


@pytest.mark.parametrize("start", [(*CLI, *ASK, "--tensor-parallel", "2"), (*TORCHRUN, *CLI, *ASK)])
def test_rank_0_reads_standard_input_and_prints_the_answer(start, tiny_session):
    result = run(*start, "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    stream = tiny_session.ask(collection(), QUESTION, Settings(mode="select", keep=0.3, max_new_tokens=8))
    assert record["answer"] == "".join(stream).strip()
    assert [span["start"] for span in record["spans"]] == [span.start for span in stream.prefilled.plan.spans]


def test_draft_kv_runs_in_one_process_only():
    result = run(*CLI, "ask", "-", QUESTION, "--mode", "draft-kv", "--tensor-parallel", "2")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("specprefill: --mode draft-kv: this mode runs in a single process")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_end_all_ranks_and_keep_the_answer_so_far(name, code):
    arguments = (*ASK, "--tensor-parallel", "2", "--speculate", "off", "--json")
    ended = run(HELPERS / "interrupted_ask.py", *arguments, SIGNAL=name)
    assert ended.returncode == code, ended.stderr
    assert json.loads(ended.stdout)["generated_tokens"] >= 1


@pytest.mark.parametrize(
    ("fate", "words"), [("die", "stopped answering"), ("refuse", "rank 1 failed: no such file on this machine")]
)
def test_rank_lost_under_torchrun_ends_the_run_with_one_line(fate, words):
    result = run(*TORCHRUN, HELPERS / "dying_rank.py", *ASK, RANK_1=fate)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("specprefill:")]
    assert words in line
