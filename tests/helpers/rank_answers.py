"""Script that tests run: the bundled pair answers in every mode, and prints the answers as JSON.

Arguments: the number of ranks; then `all`, a folder of other pairs to run, or the name of a signal to send to rank 1
before a question.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

CASES = [(mode, speculate) for mode in ("full", "select") for speculate in ("off", 4)]
KEEPERS = ("Anna Moss", "Peter Hill", "Ruth Lane")
TEXT = " ".join(
    f"The gate of house {number} is open from {number % 5 + 7} to {number % 4 + 16}, "
    f"and its keeper is called {KEEPERS[number % 3]} {number}."
    for number in range(20)
)
QUESTION = "Who is the keeper of house 13?"
# Pairs that four ranks can share too.
SHARED_BY_FOUR = ("four heads", "phi3")


def collection():
    from specprefill_cli.documents.document import Collection, one_page_document

    return Collection((one_page_document("gates", TEXT),))


def answer(session, settings):
    """Answer, and return all that must not depend on the number of ranks, such as tokens and fates."""
    stream = session.ask(collection(), QUESTION, settings)
    # Small models stop early otherwise.
    stream.stop_tokens = frozenset()
    for _ in stream:
        pass
    plan = stream.prefilled.plan
    return {
        "tokens": stream.tokens,
        "spans": [[span.start, span.end, span.fate] for span in plan.spans],
        "importance": importance(stream.prefilled.importance),
        "reused": list(stream.prefilled.reused),
        "interrupted": stream.interrupted,
    }


def importance(scores):
    """Return importance as shares of the highest."""
    return None if scores is None else (scores / scores.max()).tolist()


def interrupted_answer(session, settings):
    """Return an answer that Ctrl-C interrupts during the third decode step."""
    passes = []

    def interrupt_fourth_pass(_model, _arguments):
        passes.append(1)
        if len(passes) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    hook = session.pair.target.model.model.rotary_emb.register_forward_pre_hook(interrupt_fourth_pass)
    try:
        return answer(session, settings)
    finally:
        hook.remove()


def answers(session):
    """Answer in every mode with and without speculation, sampled, interrupted, and with a shared cache."""
    from specprefill_cli.prefill.prefix_cache import DocumentCache
    from specprefill_cli.settings import Settings

    base = Settings(max_new_tokens=8, keep=0.3)
    results = {
        f"{mode} {speculate}": answer(session, replace(base, mode=mode, speculate=speculate))
        for mode, speculate in CASES
    }
    results["lexical"] = answer(session, replace(base, mode="select", scorer="lexical", speculate="off"))
    results["sampled"] = answer(session, replace(base, mode="full", temperature=1.0, seed=5))
    plain = replace(base, mode="full", speculate="off")
    results["interrupted"] = interrupted_answer(session, plain)
    sharing = session.with_cache(DocumentCache())
    results["first of two"] = answer(sharing, plain)
    results["second of two"] = answer(sharing, plain)
    for number in ("first", "second"):
        results[f"{number} selection"] = answer(sharing, replace(plain, mode="select"))
    return results


def other_architectures(ranks, folder):
    """Answer with each pair in a folder. Every layer of Mistral has a window, so its draft cannot score."""
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.settings import Settings

    results = {}
    for path in sorted(Path(folder).iterdir()):
        if ranks > 2 and path.name not in SHARED_BY_FOUR:
            # Four processes take long on two cores.
            continue
        models = {"draft": str(path / "draft"), "target": str(path / "target"), "prompt": "tiny"}
        # Of the scorers that read the draft's attention, `heads` alone takes documents beyond its context.
        scorer = {"mistral": "lexical", "short draft": "heads"}.get(path.name, "question")
        base = Settings(**models, tensor_parallel=ranks, scorer=scorer, keep=0.4, max_new_tokens=4)
        session = open_session(base, draft=True)
        cases = {"full": {"speculate": 2, "proposer": "draft"}, "select": {"speculate": 2}}
        if scorer != "lexical":
            cases |= {"heads": {"mode": "select", "scorer": "heads"}}
        if path.name == "short draft":
            # The draft reads the document in parts.
            cases.pop("full")
        for name, changes in cases.items():
            settings = replace(base, **{"mode": name, "speculate": "off", **changes})
            results[f"{path.name} {name}"] = answer(session, settings)
    return results


def main(ranks, task):
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.settings import Settings

    if os.path.isdir(task):
        print(json.dumps(other_architectures(ranks, task)))
        return
    session = open_session(Settings(pair="tiny", tensor_parallel=ranks), draft=True)
    if task == "all":
        print(json.dumps(answers(session)))
        return
    (rank_1,) = session.pair.ranks.processes.context.pids().values()
    os.kill(rank_1, getattr(signal, task))
    answer(session, Settings(mode="full", max_new_tokens=4))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
