"""Tensor parallelism over two gloo processes: the tokens of one process, and a clear end when a rank is lost."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import specprefill_cli
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES, build_model
from tests.helpers.rank_answers import QUESTION, TEXT, answers, collection, other_architectures

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parent.with_name("helpers")
# Only against a hang: nothing is asserted about time.
PATIENCE = 300
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
            timeout=PATIENCE,
        )


def our_lines(text):
    return [line for line in text.splitlines() if line.startswith("specprefill:")]


@pytest.fixture(scope="module")
def answers_of_one(tiny_session):
    return json.loads(json.dumps(answers(tiny_session)))


@pytest.fixture(scope="module")
def answers_of_two():
    done = run(HELPERS / "rank_answers.py", 2, "all")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_ranks_give_the_tokens_and_fates_of_one_process(answers_of_one, answers_of_two):
    assert set(answers_of_two) == set(answers_of_one)
    for name in set(answers_of_one) - {"interrupted"}:
        assert len(answers_of_one[name]["tokens"]) == 8, name
        assert answers_of_two[name] == answers_of_one[name], name
    fates = {fate for name in answers_of_one for _, _, fate in answers_of_one[name]["spans"]}
    assert fates == {"recompute", "accept", "drop"}


def test_every_architecture_gives_the_tokens_of_one_process(tokenizer, tmp_path):
    for name in ARCHITECTURES:
        build_model(name).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    done = run(HELPERS / "rank_answers.py", 2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(other_architectures(1, tmp_path)))


def test_ctrl_c_ends_the_answer_on_all_ranks_and_not_the_session(answers_of_one, answers_of_two):
    for results in (answers_of_one, answers_of_two):
        interrupted = results["interrupted"]
        assert interrupted["interrupted"]
        assert 1 < len(interrupted["tokens"]) < 8
        assert results["first of two"]["tokens"][: len(interrupted["tokens"])] == interrupted["tokens"]


def test_ranks_keep_their_shard_of_a_documents_cache(answers_of_two):
    assert answers_of_two["first of two"]["reused"] == []
    assert answers_of_two["second of two"]["reused"] == ["target document KV"]


@pytest.mark.parametrize(
    ("name", "words"), [("SIGKILL", "rank 1 stopped answering: its process"), ("SIGSTOP", "no heartbeat for")]
)
def test_lost_rank_ends_the_run_with_one_line(name, words):
    done = run(HELPERS / "rank_answers.py", 2, name)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("specprefill: rank 1 stopped answering")
    assert words in line


@pytest.mark.parametrize("start", [(*CLI, *ASK, "--tensor-parallel", "2"), (*TORCHRUN, *CLI, *ASK)])
def test_rank_0_reads_standard_input_and_prints_the_answer(start, tiny_session):
    done = run(*start, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    stream = tiny_session.ask(collection(), QUESTION, Settings(mode="select", keep=0.3, max_new_tokens=8))
    assert record["answer"] == "".join(stream).strip()
    assert [span["start"] for span in record["spans"]] == [span.start for span in stream.prefilled.plan.spans]


def test_rank_0_keeps_its_exit_codes():
    usage = run(*CLI, *ASK, "--tensor-parallel", "2", "--devices", "cuda:1")
    assert (usage.returncode, usage.stdout) == (2, "")
    assert len(usage.stderr.splitlines()) == 1
    interrupted = run(HELPERS / "interrupted_ask.py", *ASK, "--tensor-parallel", "2", "--speculate", "off", "--json")
    assert interrupted.returncode == 130, interrupted.stderr
    assert json.loads(interrupted.stdout)["generated_tokens"] >= 1


def test_busy_rank_does_not_hold_up_the_end():
    done = run(*TORCHRUN, HELPERS / "busy_rank.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("die", "stopped answering"),
        ("fail", "rank 1 failed: no room left"),
        ("refuse", "rank 1 failed: no such file on this machine"),
    ],
)
def test_rank_lost_under_torchrun_ends_the_run_with_one_line(fate, words):
    done = run(*TORCHRUN, HELPERS / "dying_rank.py", *ASK, RANK_1=fate)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = our_lines(done.stderr)
    assert words in line
