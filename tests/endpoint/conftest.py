"""A scripted server for each test, and a session that asks it."""

import pytest

from specprefill_cli.endpoint.session import open_endpoint
from specprefill_cli.settings import Settings
from tests.helpers.upstream import running_upstream


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """These tests talk to a server on the loopback, which the other tests may not. Each fault comes at once."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("specprefill_cli.endpoint.client.RETRIES", 0)


@pytest.fixture
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture
def session(upstream):
    """Without the sentence encoder, which takes most of a test's time."""
    return open_endpoint(Settings(target=upstream.target, devices="cpu", scorer="heads"))
