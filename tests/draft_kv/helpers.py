"""Requests and prefills of the tests of draft KV."""

import pytest

from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8
# Every layer of Mistral's draft sees a short window only.
every_architecture = pytest.mark.parametrize("random_pair", sorted(set(ARCHITECTURES) - {"mistral"}), indirect=True)


def request_for(session, text=TEXT, question="When does the gate open?", **settings):
    collection = Collection((one_page_document("doc", text, "text/plain"),))
    return session.request(collection, question, Settings(**{"scorer": "question", "look_ahead": 1, **settings}))


def prefilled(session, mode, **settings):
    return MODES[mode].prefill(request_for(session, mode=mode, **settings))
