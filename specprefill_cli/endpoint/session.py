"""A session and an engine with the target behind an endpoint. The draft chooses the text here, and the server answers."""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

from transformers import LlamaConfig

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.text_stream import TextStream
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.document import Collection, Document
from specprefill_cli.endpoint.choosing import Choice, chat_messages, check_possible, choose
from specprefill_cli.endpoint.client import Client, Reply
from specprefill_cli.engine.request import ANSWER, Done, Event, Piece, ReadDocuments, RemoteEngine, Request, Started
from specprefill_cli.models.loaded import ModelOutline
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.machine.placement import choose_placement, draft_placement
from specprefill_cli.models.sources.pairs import CHOOSER, Pair, draft_folder
from specprefill_cli.models.sources.refs import parse_endpoint
from specprefill_cli.models.sources.tokenizers import count_tokens
from specprefill_cli.prefill.calibration import CalibratedPair, load_heads
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.prefill.registry import check_names
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prompting import Template, load_template
from specprefill_cli.record import NOT_FOUND, PLANNED_MODE, UPSTREAM, Record, Verdict
from specprefill_cli.settings import Settings

# Rows in flight without --concurrency: servers batch this many without slowing each down much.
CAPACITY = 8
# The server checks its model's context, so no prompt is too long here.
NO_LIMIT = 2**40
# A server that counts fewer tokens than one for so many characters has probably truncated the prompt.
MOST_CHARACTERS = 12
CUT_PROMPT = "the endpoint counts too few tokens and may have cut the prompt; give its model a longer context"


def open_endpoint(settings: Settings) -> "EndpointSession":
    """Load the draft, and open a client of the endpoint; send nothing. Raises as `open_chooser` does."""
    ref = parse_endpoint(settings.target or "")
    client, messages = Client(ref), load_template(settings.prompt or Pair.prompt)
    return EndpointSession(**vars(open_chooser(settings, ref.name)), client=client, messages=messages)


def open_chooser(settings: Settings, target: str) -> Session:
    """Load the draft that chooses text for the endpoint `target`. Raises UsageError for what no endpoint can have."""
    check_names(settings)
    check_possible(settings)
    pair_names = Pair("custom", settings.draft or CHOOSER, target)
    placement = draft_placement(choose_placement(settings.devices))
    draft = load_model(pair_names.draft, placement, settings.dtype, settings.offline)
    # Of the target only the name is known. `auto` treats it as transformers' default Llama with 7 billion.
    config = LlamaConfig(max_position_embeddings=NO_LIMIT)
    outline = ModelOutline(target, config, draft.tokenizer, draft.device.partition(":")[0])
    pair = CalibratedPair(pair=pair_names, target=outline, draft=draft)
    pair.scoring_heads = load_heads(draft_folder(pair_names.draft), draft)
    return Session(pair=pair, template=load_template(pair_names.draft_prompt or pair_names.prompt), settings=settings)


@dataclass(kw_only=True)
class EndpointStream(TextStream):
    """The answer of a server. incoming: pieces of its text; upstream_seconds: from the request to the first piece."""

    prefilled: Choice
    reply: Reply
    incoming: Iterator[str]
    upstream_seconds: float
    decode_seconds: float = 0.0

    @property
    def request(self) -> PrefillRequest:
        return self.prefilled.request

    def __iter__(self) -> Generator[str, None, None]:
        """Yield pieces of text as they arrive. Raises EndpointError where the answer is cut off."""
        began = time.perf_counter()
        try:
            for piece in [NOT_FOUND] if self.is_denied else self.incoming:
                yield from self.emit(piece)
        except KeyboardInterrupt:
            self.interrupt()
        finally:
            # Also runs where the caller stops iterating.
            self.decode_seconds = time.perf_counter() - began
            self.reply.stream.close()

    @property
    def length_stop(self) -> bool:
        return self.reply.finish_reason == "length"

    def warnings(self) -> list[str]:
        """All warnings: about documents, the choice of text, token counts, and the end of the answer."""
        draft, prompt_tokens = self.request.draft, self.reply.prompt_tokens
        server_count = f"; the endpoint counts {prompt_tokens:,} in the sent text" if prompt_tokens else ""
        warnings = [
            *(*self.collection.warnings, *self.prefilled.warnings),
            f"tokens are counted with {draft.name}'s tokenizer{server_count}; kept text is sent as prose, without its original "
            "positions, draft KV or speculation",
        ]
        if prompt_tokens and prompt_tokens * MOST_CHARACTERS < len(self.prefilled.text):
            warnings.append(CUT_PROMPT)
        return warnings + self.end_warnings("its longest")

    def result(self) -> Record:
        request, choice = self.request, self.prefilled
        tokens = self.reply.completion_tokens or count_tokens(self.text)
        selects = choice.mode == PLANNED_MODE
        draft_ran = request.clock.draft_ran
        return self.record(
            mode=choice.mode,
            reason=choice.reason,
            draft=request.draft.name if draft_ran else None,
            ttft_seconds=request.clock.ttft + self.upstream_seconds,
            phases=request.clock.phases() | {UPSTREAM: self.upstream_seconds},
            generated_tokens=tokens,
            tokens_per_second=(tokens - 1) / self.decode_seconds if tokens > 1 and self.decode_seconds else None,
            warnings=self.warnings(),
            speculation=Verdict("off", "the endpoint decodes by itself"),
            scorer=request.scorer if selects else None,
            draft_window=request.draft_window if draft_ran else None,
        )


@dataclass(kw_only=True)
class EndpointSession(Session):
    """Answers from any number of threads; the draft reads for one at a time. messages: template of those to send."""

    client: Client
    messages: Template
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(  # type: ignore[override]
        self, documents: Collection | Sequence[Document], question: str, settings: Settings | None = None
    ) -> EndpointStream:
        """Choose the text, send it, and wait for a piece. Raises UsageError, PromptTooLong, EndpointError."""
        settings = self.settings if settings is None else settings
        check_possible(settings)
        collection = documents if isinstance(documents, Collection) else Collection(tuple(documents))
        question = clean_question(question)
        with self.lock:
            choice = choose(self, collection, question, settings)
        began = time.perf_counter()
        messages = self.messages.for_whole() if is_about_everything(question) else self.messages
        reply = self.client.send(chat_messages(messages, choice.text, question), settings)
        pieces = iter(reply)
        first_piece = next(pieces, "")
        return EndpointStream(
            settings=settings,
            prefilled=choice,
            reply=reply,
            incoming=chain([first_piece], pieces),
            upstream_seconds=time.perf_counter() - began,
            startup_seconds=self.startup_seconds,
        )

    def warm_up(self, settings: Settings) -> None:
        """Do nothing: the server is warm."""


@dataclass(frozen=True)
class EndpointEngine(RemoteEngine):
    """Asks through the session of `open_endpoint`. Ctrl-C ends an answer with the text up to then."""

    session: Session
    capacity: int = CAPACITY
    read: ReadDocuments | None = None

    def ask(self, request: Request) -> Generator[Event, None, None]:
        """Yield the events of a question. Raises what `EndpointSession.ask` raises, EndpointError for a cut answer."""
        assert request.task == ANSWER, "plans and passages need a target with weights here"
        stream = self.session.ask(request.read_documents(self.read), request.question, request.settings)
        yield Started()
        with closing(iter(stream)) as pieces:
            for text in pieces:
                yield Piece(text)
        yield Done(stream.result(), stream.cells if request.with_cells else None)
