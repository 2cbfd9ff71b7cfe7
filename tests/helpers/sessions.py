"""A text about gates, and sessions and requests that ask about it."""

from specprefill_cli.answering.session import Session
from specprefill_cli.prompting import load_template
from specprefill_cli.settings import Settings
from tests.helpers.samples import collection_of

GATES = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. "


def request_for(session, text=GATES * 6, question="When does the gate open?", **settings):
    return session.request(collection_of(text), question, Settings(**settings))


def session_of(pair):
    """A session with the prompt of the bundled pair."""
    return Session(pair=pair, template=load_template("tiny"))
