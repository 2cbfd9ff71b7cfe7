"""Which worker a row goes to, and what each worker gets of a cluster."""

import pytest

from specprefill_cli.batching.executor import Task
from specprefill_cli.batching.nodes import divide, fits
from specprefill_cli.batching.routing import KEPT_LISTS, Router
from specprefill_cli.batching.rows import Row
from specprefill_cli.errors import SpecprefillError


def tasks(*documents):
    return [Task(number, Row(number, "Who?", names)) for number, names in enumerate(documents)]


def test_rows_go_where_their_documents_are():
    router = Router()
    router.sent(0, ("a",))
    router.sent(1, ("b",))
    waiting = tasks(("b",), ("a",), ("c",), ("a",))
    assert router.choose(0, waiting).ticket == 1
    assert router.choose(1, waiting).ticket == 0


def test_a_worker_prefers_new_documents_to_those_of_another():
    router = Router()
    router.sent(0, ("a",))
    assert router.choose(1, tasks(("a",), ("c",), ("d",))).ticket == 1
    assert router.choose(1, tasks(("a",), ("a",))).ticket == 0


def test_the_batchs_own_documents_are_everywhere():
    router = Router()
    router.sent(0, ("a",))
    assert router.choose(0, tasks((), ("a",))).ticket == 0


def test_a_worker_keeps_its_latest_documents_and_a_lost_one_none():
    router = Router()
    for number in range(KEPT_LISTS + 1):
        router.sent(0, (f"{number}",))
    waiting = tasks(("0",), ("1",))
    assert router.choose(0, waiting).ticket == 1
    router.forget(0)
    assert router.choose(0, waiting).ticket == 0


def node(**resources):
    return {"Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "workers", "gpus", "divided"),
    [
        ([node(CPU=2.0)], 2, 1, (2, {"num_cpus": 1})),
        ([node(CPU=16.0), node(CPU=8.0)], None, 1, (2, {"num_cpus": 8})),
        ([node(CPU=16.0), node(CPU=8.0)], 4, 1, (4, {"num_cpus": 4})),
        ([node(CPU=16.0, GPU=4.0), node(CPU=8.0)], None, 1, (4, {"num_gpus": 1, "num_cpus": 4})),
        ([node(CPU=16.0, GPU=4.0), node(CPU=16.0, GPU=2.0)], None, 2, (3, {"num_gpus": 2, "num_cpus": 8})),
        ([node(CPU=16.0, GPU=4.0)], 2, 0, (2, {"num_cpus": 8})),
    ],
)
def test_a_cluster_is_divided_among_workers(nodes, workers, gpus, divided):
    assert divide(nodes, workers, gpus) == divided


@pytest.mark.parametrize(
    ("nodes", "workers", "gpus", "words"),
    [
        ([node(CPU=16.0, GPU=4.0)], 5, 1, "room for 4 workers of 1 GPU"),
        ([node(CPU=16.0, GPU=1.0), node(CPU=16.0, GPU=1.0)], None, 2, "room for 0 workers of 2 GPU"),
        ([node(CPU=2.0)], 3, 1, "room for 2 workers of 1 CPU"),
        ([node()], None, 1, "room for 0 workers of 1 CPU"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(nodes, workers, gpus, words):
    with pytest.raises(SpecprefillError, match=words):
        divide(nodes, workers, gpus)


def test_only_nodes_that_can_have_workers_are_checked():
    head, worker = node(CPU=4.0), node(CPU=16.0, GPU=4.0)
    assert [fits(machine, {"num_gpus": 1, "num_cpus": 4}) for machine in (head, worker)] == [False, True]
