"""Ranks the chunks of training documents with the bundled draft, as it will choose for the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specprefill_cli.answering.session import open_session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.prefill.importance import transfer
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.selection import add_neighbours, chunk_scores, rank_chunks
from specprefill_cli.settings import Settings
from specprefill_cli.training.positions import CHUNK

# Memory for documents that are asked about again.
CACHE_BYTES = 2**27


class DraftRanking:
    """Ranks chunks of a tokenizer other than the draft's own; raises SpecprefillError where the pair is missing."""

    def __init__(self) -> None:
        self.settings = Settings(pair="tiny", mode="select", max_new_tokens=1, devices="cpu", scorer="blend")
        cache = DocumentCache(draft=PrefixCache(capacity_bytes=CACHE_BYTES))
        self.session = open_session(self.settings, draft=True, target_weights=False).with_cache(cache)

    def __call__(self, text: str, question: str, offsets: np.ndarray) -> Sequence[int]:
        """Indices of the document's chunks, the best first; offsets: [n, 2] character ranges of its tokens."""
        document = one_page_document("row", text, "text/plain")
        request = self.session.request(Collection((document,)), question, self.settings)
        scores = shared_scores(request)
        importance = transfer(scores.importance, request.draft_prompt.offsets, offsets)
        return rank_chunks(add_neighbours(chunk_scores(importance, CHUNK), scores.neighbours)).tolist()
