"""A caller of an engine that logs its events."""

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import LAST, Done, Piece, Request


class Asker:
    """Submits requests, and logs all events in order. settings, documents: defaults of requests."""

    def __init__(self, session, settings, documents, **options):
        self.engine = LocalEngine(session, **options)
        self.settings, self.documents = settings, documents
        self.log = []

    def submit(self, name, question="Who?", settings=None, documents=None, limit=None, **fields):
        settings, documents = settings or self.settings, documents or self.documents
        request = Request(documents=documents, question=question, settings=settings, **fields)
        ticket = self.engine.submit(request, lambda event: self.log.append((name, event)), limit)
        # Waits for the encoding, so that requests begin in order and a step has work.
        ticket.encoded.exception(60)
        return ticket

    def events(self, name):
        return [event for request_name, event in self.log if request_name == name]

    def event_types(self, name):
        return [type(event) for event in self.events(name)]

    def text(self, name):
        return "".join(event.text for event in self.events(name) if isinstance(event, Piece)).strip()

    def last(self, name):
        (last,) = [event for event in self.events(name) if isinstance(event, LAST)]
        return last

    def record(self, name):
        last = self.last(name)
        assert isinstance(last, Done), last.error
        return last.result

    def step_until(self, name, event_type):
        while event_type not in self.event_types(name):
            assert self.engine.busy
            self.engine.step()

    def finish(self):
        while self.engine.busy:
            self.engine.step()
