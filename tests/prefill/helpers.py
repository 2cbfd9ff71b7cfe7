"""Documents and requests of the tests of prefill."""

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.settings import Settings

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 6


def collection_of(text=TEXT):
    return Collection((one_page_document("doc", text, "text/plain"),))


def request_for(session, text=TEXT, question="When does the gate open?", **settings):
    return session.request(collection_of(text), question, Settings(**settings))
