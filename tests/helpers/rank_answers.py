"""Script that tests run: the bundled pair answers in every mode and prints the answers as JSON.

Arguments: the number of ranks; then `all`, or a folder of models to use instead, or the name of a signal to send to rank 1
before a question.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

CASES = [(mode, speculate) for mode in ("full", "select", "draft-kv", "hybrid") for speculate in ("off", 4)]
KEEPERS = ("Anna Moss", "Peter Hill", "Ruth Lane")
TEXT = " ".join(
    f"The gate of house {number} is open from {number % 5 + 7} to {number % 4 + 16}, "
    f"and its keeper is called {KEEPERS[number % 3]} {number}."
    for number in range(20)
)
QUESTION = "Who is the keeper of house 13?"


def collection():
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.documents.document import one_page_document

    return Collection((one_page_document("gates", TEXT, "text/plain"),))


def answer(session, settings):
    """Return everything that must not depend on the number of ranks, such as tokens and fates."""
    stream = session.ask(collection(), QUESTION, settings)
    # Small models stop early otherwise.
    stream.stop_tokens = frozenset()
    for _ in stream:
        pass
    plan = stream.prefilled.plan
    return {
        "tokens": stream.tokens,
        "spans": [[span.start, span.end, span.fate] for span in plan.spans],
        "reused": list(stream.prefilled.reused),
        "interrupted": stream.interrupted,
    }


def interrupted_answer(session, settings):
    """Return an answer that Ctrl-C interrupts during the third decode step."""
    passes = []

    def interrupt_fourth_pass(_model, _arguments):
        passes.append(1)
        if len(passes) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    hook = session.pair.target.model.register_forward_pre_hook(interrupt_fourth_pass)
    try:
        return answer(session, settings)
    finally:
        hook.remove()


def answers(session):
    """Return answers of every mode with and without speculation, sampled, interrupted, and from a shared cache."""
    from specprefill_cli.prefill.prefix_cache import DocumentCache
    from specprefill_cli.settings import Settings

    # Without the gate, so that draft KV is used at all.
    base = Settings(max_new_tokens=8, keep=0.3, accept_risk="off")
    results = {
        f"{mode} {speculate}": answer(session, replace(base, mode=mode, speculate=speculate))
        for mode, speculate in CASES
    }
    results["exact layers"] = answer(session, replace(base, mode="draft-kv", exact_layers=2, speculate="off"))
    for mode in ("draft-kv", "hybrid"):
        results[f"{mode} behind the gate"] = answer(session, replace(base, mode=mode, accept_risk=0.01))
    results["lexical"] = answer(session, replace(base, mode="select", scorer="lexical", speculate="off"))
    results["sampled"] = answer(session, replace(base, mode="full", temperature=1.0, seed=5))
    plain = replace(base, mode="full", speculate="off")
    results["interrupted"] = interrupted_answer(session, plain)
    sharing = session.with_cache(DocumentCache())
    results["first of two"] = answer(sharing, plain)
    results["second of two"] = answer(sharing, plain)
    return results


def other_architectures(ranks, folder):
    """Return the answers of each model in a folder, without a draft: not every architecture can serve as one."""
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.settings import Settings

    results = {}
    for path in sorted(Path(folder).iterdir()):
        models = {"draft": str(path), "target": str(path), "prompt": "tiny", "tensor_parallel": ranks}
        base = Settings(**models, scorer="lexical", keep=0.4, max_new_tokens=6)
        session = open_session(base, draft=False)
        for mode in ("full", "select"):
            results[f"{path.name} {mode}"] = answer(session, replace(base, mode=mode, speculate="off"))
    return results


def main(ranks, task):
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.distributed import heartbeat
    from specprefill_cli.settings import Settings

    if os.path.isdir(task):
        print(json.dumps(other_architectures(ranks, task)))
        return
    heartbeat.SILENCE = 2.0
    session = open_session(Settings(tensor_parallel=ranks), draft=True)
    if task == "all":
        print(json.dumps(answers(session)))
        return
    (rank_1,) = session.pair.ranks.heartbeat.workers.context.pids().values()
    os.kill(rank_1, getattr(signal, task))
    answer(session, Settings(mode="full", max_new_tokens=4))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
