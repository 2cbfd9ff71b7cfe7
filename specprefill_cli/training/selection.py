"""The chunks of a training document that a pair's draft chooses, as in `select`: what the target will have to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.scoring_heads import load_heads
from specprefill_cli.prefill.selection import add_neighbours, chunk_scores, rank_chunks
from specprefill_cli.settings import Settings


def open_pair(pair: Path, base: Settings, target_weights: bool = True) -> Session:
    """A session with an exported pair and the bundled prompt; scoring heads are used if it has them."""
    settings = base.varied(draft=str(pair / "draft"), target=str(pair / "target"), prompt="tiny", offline=True)
    session = open_session(settings, draft=True, target_weights=target_weights, calibrated=False)
    session.pair.scoring_heads = load_heads(pair, session.pair.loaded_draft)
    return session


class DraftChoice:
    """Chooses chunks with the draft of an exported pair, on a CPU: many processes do so beside training."""

    def __init__(self, pair: Path) -> None:
        self.settings = Settings(mode="select", max_new_tokens=1, devices="cpu")
        self.session = open_pair(pair, self.settings, target_weights=False)

    def __call__(self, text: str, question: str, most: int) -> Sequence[int]:
        """The `most` best chunks of a document, the best first."""
        collection = Collection((one_page_document("row", text, "text/plain"),))
        request = self.session.request(collection, question, self.settings)
        scores = shared_scores(request)
        chunks = add_neighbours(chunk_scores(scores.importance, request.chunk_size), scores.neighbours)
        return rank_chunks(chunks)[:most].tolist()
