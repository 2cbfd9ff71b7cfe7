"""Tensor parallelism over two gloo processes: the tokens of one process, and an end in words when a rank is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import specprefill_cli
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES, build_model
from tests.helpers.rank_answers import TEXT, answers, collection, other_architectures

HELPERS = Path(__file__).parent.with_name("helpers")
# Only against a hang: nothing is asserted about time.
PATIENCE = 300
ASK = ("ask", "-", "Who is the keeper of house 13?", "--mode", "select", "--keep", "0.3", "--max-new-tokens", "8")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*arguments, **environment):
    root = str(Path(specprefill_cli.__file__).resolve().parent.parent)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, **environment},
        input=TEXT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def our_lines(text):
    return [line for line in text.splitlines() if line.startswith("specprefill:")]


@pytest.fixture(scope="module")
def one(tiny_session):
    """The answers of one process."""
    return json.loads(json.dumps(answers(tiny_session)))


@pytest.fixture(scope="module")
def two():
    """The answers of two ranks."""
    done = run(HELPERS / "rank_answers.py", 2, "lives")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_ranks_give_the_tokens_and_the_fates_of_one(one, two):
    assert set(two) == set(one)
    for name in set(one) - {"interrupted"}:
        assert len(one[name]["tokens"]) == 8, name
        assert two[name] == one[name], name
    fates = {fate for name in one for _, _, fate in one[name]["spans"]}
    assert fates == {"recompute", "accept", "drop"}


def test_every_architecture_gives_the_tokens_of_one_process(tokenizer, tmp_path):
    for name in ARCHITECTURES:
        build_model(name).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    done = run(HELPERS / "rank_answers.py", 2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(other_architectures(1, tmp_path)))


def test_ctrl_c_ends_the_answer_on_all_ranks_and_not_the_session(one, two):
    for found in (one, two):
        ended = found["interrupted"]
        assert ended["interrupted"]
        assert 1 < len(ended["tokens"]) < 8
        assert found["first of two"]["tokens"][: len(ended["tokens"])] == ended["tokens"]


def test_ranks_keep_their_share_of_a_documents_cache(two):
    assert two["first of two"]["reused"] == []
    assert two["second of two"]["reused"] == ["target document KV"]


def test_a_killed_rank_ends_the_run_with_one_line():
    done = run(HELPERS / "rank_answers.py", 2, "SIGKILL")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("specprefill: rank 1 stopped answering")


def test_torchrun_starts_the_same_command(tiny_session):
    done = run(*TORCHRUN, "-m", "specprefill_cli", *ASK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    stream = tiny_session.ask(collection(), ASK[2], Settings(mode="select", keep=0.3, max_new_tokens=8))
    assert found["answer"] == "".join(stream).strip()
    assert [span["start"] for span in found["spans"]] == [span.start for span in stream.prefilled.plan.spans]


def test_a_rank_that_takes_no_order_is_not_waited_for_at_the_end():
    done = run(*TORCHRUN, HELPERS / "deaf_rank.py")
    assert done.returncode == 1
    assert done.stdout == "done\n"


@pytest.mark.parametrize(("fate", "words"), [("die", "stopped answering"), ("fail", "rank 1 failed: no room left")])
def test_a_rank_lost_under_torchrun_ends_the_run_with_one_line(fate, words):
    done = run(*TORCHRUN, HELPERS / "dying_rank.py", *ASK, RANK_1=fate)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = our_lines(done.stderr)
    assert words in line
