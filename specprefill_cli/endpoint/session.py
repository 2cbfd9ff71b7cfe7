"""A session whose target is behind an endpoint: the draft chooses here, the server answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specprefill_cli.answering.names import check_names
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.warm_up import SHORT_TEXT
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.endpoint.choosing import choose
from specprefill_cli.endpoint.client import Client, open_client
from specprefill_cli.endpoint.evidence_text import chat_messages
from specprefill_cli.endpoint.options import check_possible
from specprefill_cli.endpoint.outline import endpoint_outline
from specprefill_cli.endpoint.stream import EndpointStream
from specprefill_cli.errors import UsageError
from specprefill_cli.models.calibration import draft_folder
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.memory import PeakMemory
from specprefill_cli.models.pairs import Pair
from specprefill_cli.models.placement import choose_placement, draft_placement
from specprefill_cli.models.refs import BUNDLED, parse_endpoint
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.scoring_heads import load_heads
from specprefill_cli.prompting import Template, load_template
from specprefill_cli.settings import Settings, prompt_folder

CHOOSER = f"{BUNDLED}draft"


def open_endpoint(settings: Settings) -> EndpointSession:
    """Load the draft, and prepare to ask the endpoint that `--target` names; it is not asked yet.

    Raises UsageError for settings that an endpoint cannot have, SpecprefillError where the draft cannot be loaded or the
    package openai is missing.
    """
    ref = parse_endpoint(settings.target or "")
    client, messages = open_client(ref), load_template(settings.prompt or Pair.prompt, [prompt_folder(settings)])
    chooser = open_chooser(settings, ref.name)
    return EndpointSession(
        pair=chooser.pair, template=chooser.template, settings=settings, client=client, messages=messages
    )


def open_chooser(settings: Settings, target: str) -> Session:
    """Load the draft, which chooses what an endpoint is sent. target: the endpoint's name.

    Raises UsageError for settings that an endpoint cannot have, SpecprefillError where the draft cannot be loaded.
    """
    check_names(settings)
    check_possible(settings)
    named = Pair("custom", settings.draft or CHOOSER, target)
    place = draft_placement(choose_placement(settings.devices), None)
    draft = load_model(named.draft, place, settings.dtype, settings.offline)
    pair = CalibratedPair(pair=named, target=endpoint_outline(target, draft), draft=draft)
    pair.scoring_heads = load_heads(draft_folder(named.draft), draft)
    return Session(pair=pair, template=load_template(named.draft_prompt or named.prompt), settings=settings)


@dataclass(kw_only=True)
class EndpointSession(Session):
    """Answers questions from any number of threads; the draft, which is quick, reads for one of them at a time.

    template: what the draft reads; messages: the template of what is sent
    """

    client: Client
    messages: Template
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(  # type: ignore[override]
        self,
        documents: Collection | Sequence[Document],
        question: str,
        settings: Settings | None = None,
        identifier: str = "",
    ) -> EndpointStream:
        """Choose, send, and wait for the first piece of the answer; iterating over the stream brings the others.

        Raises UsageError for an empty question or settings that an endpoint cannot have, PromptTooLong for a prompt beyond
        the model's context, EndpointError where the server fails.
        """
        settings = self.settings if settings is None else settings
        check_possible(settings)
        collection = documents if isinstance(documents, Collection) else Collection(tuple(documents))
        question = clean_question(question)
        memory = PeakMemory()
        with self.lock:
            choice = choose(self, collection, question, settings)
        began = time.perf_counter()
        reply = self.client.send(chat_messages(self.messages, choice.text, question), settings)
        pieces = iter(reply)
        first = next(pieces, "")
        return EndpointStream(
            collection=collection,
            question=question,
            identifier=identifier,
            settings=settings,
            prefilled=choice,
            reply=reply,
            rest=pieces,
            first=first,
            upstream_seconds=time.perf_counter() - began,
            memory=memory,
            startup_seconds=self.startup_seconds,
            on_end=self.write_cache,
        )

    def write_cache(self) -> None:
        """Store on disk what the draft has computed, where there is a folder for it."""
        if self.cache is not None:
            with self.lock:
                self.cache.write()

    def warm_up(self, settings: Settings) -> None:
        """Let the draft choose once, so that no first question pays for lazy initialisation.

        Raises UsageError for settings that an endpoint cannot have.
        """
        check_possible(settings)
        with self.lock:
            if settings.scorer in self.warmed:
                return
            document = Collection((one_page_document("warm-up", SHORT_TEXT, "text/plain"),))
            choose(replace(self, cache=None), document, "When?", settings.varied(mode="select"))
            self.warmed.add(settings.scorer)

    def score(self, request: PrefillRequest) -> Scores:
        """Refuse dry runs, whose times rest on the target's sizes. Raises UsageError."""
        raise UsageError(
            f"{self.pair.target.name}: a plan's times need the sizes of its model; ask, or give a --target with "
            "weights here"
        )
