"""Run by the tests: the bundled pair answers in every mode, and prints what it answered as JSON.

Arguments: ranks that share the target; and what becomes of rank 1 (`lives`, or the name of the signal that it gets), or a
folder of other models.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

CASES = [(mode, speculate) for mode in ("full", "select", "draft-kv", "hybrid") for speculate in ("off", 4)]
TEXT = " ".join(
    f"The gate of house {number} is open from {number % 5 + 7} to {number % 4 + 16}, and its keeper is called "
    f"{('Anna Moss', 'Peter Hill', 'Ruth Lane')[number % 3]} {number}." for number in range(20)
)  # fmt: skip
QUESTION = "Who is the keeper of house 13?"


def collection():
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.documents.document import one_page_document

    return Collection((one_page_document("gates", TEXT, "text/plain"),))


def answer(session, settings):
    """What one question led to."""
    stream = session.ask(collection(), QUESTION, settings)
    # A small model ends its answers soon.
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
    """An answer that Ctrl-C ends in the middle of its third pass behind the prompt."""
    passes = []

    def press(_model, _arguments):
        passes.append(1)
        if len(passes) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    hook = session.pair.target.model.register_forward_pre_hook(press)
    try:
        return answer(session, settings)
    finally:
        hook.remove()


def answers(session):
    """Every mode, with and without speculation; a sampled answer; one that Ctrl-C ends; two that share work."""
    from specprefill_cli.prefill.prefix_cache import DocumentCache
    from specprefill_cli.settings import Settings

    base = Settings(max_new_tokens=8, keep=0.3)
    found = {
        f"{mode} {speculate}": answer(session, replace(base, mode=mode, speculate=speculate))
        for mode, speculate in CASES
    }
    found["exact layers"] = answer(session, replace(base, mode="draft-kv", exact_layers=2, speculate="off"))
    found["lexical"] = answer(session, replace(base, mode="select", scorer="lexical", speculate="off"))
    found["sampled"] = answer(session, replace(base, mode="full", temperature=1.0, seed=5))
    plain = replace(base, mode="full", speculate="off")
    found["interrupted"] = interrupted_answer(session, plain)
    sharing = replace(session, shared=DocumentCache())
    sharing.warmed = set(session.warmed)
    found["first of two"] = answer(sharing, plain)
    found["second of two"] = answer(sharing, plain)
    return found


def other_architectures(ranks, folder):
    """The answers of each model in a folder; chunks are chosen without a draft, which not every one could be."""
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.settings import Settings

    found = {}
    for path in sorted(Path(folder).iterdir()):
        base = Settings(
            draft=str(path), target=str(path), prompt="tiny", scorer="lexical", keep=0.4, max_new_tokens=6,
            tensor_parallel=ranks,
        )  # fmt: skip
        session = open_session(base, draft=False)
        for mode in ("full", "select"):
            found[f"{path.name} {mode}"] = answer(session, replace(base, mode=mode, speculate="off"))
    return found


def main(ranks, fate):
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.settings import Settings

    if os.path.isdir(fate):
        print(json.dumps(other_architectures(ranks, fate)))
        return
    session = open_session(Settings(tensor_parallel=ranks), draft=True)
    if fate == "lives":
        print(json.dumps(answers(session)))
        return
    (rank_1,) = session.pair.ranks.watch.workers
    os.kill(rank_1.pid, getattr(signal, fate))
    answer(session, Settings(mode="full", max_new_tokens=4))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
