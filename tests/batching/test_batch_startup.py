"""What a row waited for before it could be asked: its own documents are counted beside the time to first token."""

from specprefill_cli.batching import answerer as answering
from specprefill_cli.batching.answerer import SessionAnswerer, read_once
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
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
