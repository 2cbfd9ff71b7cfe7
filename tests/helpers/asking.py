"""A caller of an engine that notes what it is told."""

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import LAST, Done, Piece, Request


class Asker:
    """Submits requests, and notes who was delivered what, in order. settings, documents: of requests that name none."""

    def __init__(self, session, settings, documents, **options):
        self.engine = LocalEngine(session, **options)
        self.settings, self.documents = settings, documents
        self.log = []

    def submit(self, name, question="Who?", settings=None, documents=None, limit=None, **more):
        settings, documents = settings or self.settings, documents or self.documents
        request = Request(documents=documents, question=question, settings=settings, **more)
        ticket = self.engine.submit(request, lambda event: self.log.append((name, event)), limit)
        # So that requests begin in their order, and a step does something.
        ticket.encoded.exception(60)
        return ticket

    def events(self, name):
        return [event for asker, event in self.log if asker == name]

    def kinds(self, name):
        return [type(event) for event in self.events(name)]

    def text(self, name):
        return "".join(event.text for event in self.events(name) if isinstance(event, Piece)).strip()

    def last(self, name):
        (last,) = [event for event in self.events(name) if isinstance(event, LAST)]
        return last

    def record(self, name):
        last = self.last(name)
        assert isinstance(last, Done)
        return last.result

    def step_until(self, name, kind):
        while kind not in self.kinds(name):
            assert self.engine.busy
            self.engine.step()

    def finish(self):
        while self.engine.busy:
            self.engine.step()
