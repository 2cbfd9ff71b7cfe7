"""Requests and prefills of the tests of draft KV."""

import pytest

from specprefill_cli.prefill.registry import MODES
from tests.helpers import sessions
from tests.helpers.architectures import ARCHITECTURES

TEXT = sessions.GATES * 8
# Every layer of Mistral's draft sees a short window only.
every_architecture = pytest.mark.parametrize("random_pair", sorted(set(ARCHITECTURES) - {"mistral"}), indirect=True)


def request_for(session, text=TEXT, question="When does the gate open?", **settings):
    return sessions.request_for(session, text, question, **{"scorer": "question", "look_ahead": 1} | settings)


def prefilled(session, mode, **settings):
    return MODES[mode].prefill(request_for(session, mode=mode, **settings))
