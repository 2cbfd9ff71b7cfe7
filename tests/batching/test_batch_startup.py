"""A row's documents count as start-up, and a device out of memory is asked for less."""

import torch

from specprefill_cli.batching import answerer as answering
from specprefill_cli.batching.answerer import SessionAnswerer, read_once
from specprefill_cli.batching.loop import record_of
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.settings import Settings


def test_reading_a_rows_documents_counts_as_startup(random_session, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(answering.time, "perf_counter", lambda: now[0])

    def read(names):
        now[0] += 7.0
        return Collection((one_page_document(names[0], "The gate opens at nine. " * 20, "text/plain"),))

    settings = Settings(mode="full", max_new_tokens=2)
    random_session.warm_up(settings)
    random_session.startup_seconds = 2.0
    answer = SessionAnswerer(random_session, settings, read_once(read), None)
    first, again = (answer(Row(number, "When?", ("a.txt",))) for number in (1, 2))
    assert first["startup_seconds"] == 9.0
    assert again["startup_seconds"] == 2.0, "the text is on the shelf"


def test_a_row_that_is_out_of_memory_is_asked_again_in_short_passes(random_session, monkeypatch):
    def ask(collection, question, settings):
        asked.append((settings.prefill_chunk, len(session.cache.target.prefixes)))
        if settings.prefill_chunk != 512:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(collection, question, settings)

    asked = []
    settings = Settings(mode="full", max_new_tokens=2)
    own = Collection((one_page_document("a.txt", "The gate opens at nine. " * 20, "text/plain"),))
    session = random_session.with_cache(DocumentCache())
    answer = SessionAnswerer(session, settings, read_once(None), own)
    before = answer(Row(1, "When?"))
    real = session.ask
    monkeypatch.setattr(session, "ask", ask)
    again = answer(Row(2, "When?"))
    assert asked == [("auto", 1), (512, 0)]
    assert again["answer"] == before["answer"]
    assert again["warnings"][-1] == (
        "out of memory (CUDA out of memory. Tried to allocate 2.00 GiB); asked again in passes of 512 tokens"
    )
    # An attempt that fails even so fails the row.
    asked.clear()
    record = record_of(Row(3, "When?", (), {"prefill_chunk": 100}), answer)
    assert [tokens for tokens, _ in asked] == [100, 100]
    assert record["error"]["type"] == "OutOfMemoryError"
