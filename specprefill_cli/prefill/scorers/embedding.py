"""Scorer `embedding`: how near the meaning of each place is to the question's, by the bundled sentence encoder.

The vectors of a document do not depend on the question, so they are kept for the next question about it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specprefill_cli import __version__
from specprefill_cli.disk_cache import DiskCache
from specprefill_cli.documents.language import language_of
from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.models.encoder import DocumentVectors, encoder_flops, load_encoder, range_of_tokens
from specprefill_cli.models.glossary import Gloss, gloss
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, Scorer, Scores
from specprefill_cli.prefill.scoring_heads import blend

# Document tokens of a piece that has a vector, whatever `chunk_size` is: longer pieces say less about where the answer is.
PIECE = 32
# Factors of the similarities of pieces and of sentences before the softmax: cosines lie close together. That of pieces is
# the factor of the encoder's training.
SHARPNESS, SENTENCE_SHARPNESS = 20.0, 30.0
VECTORS = "document embeddings"


class EmbeddingScorer(Scorer):
    """The mean of two distributions by similarity with the question: over the document's pieces and over its sentences."""

    name = "embedding"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            cached = has_vectors(request)
            importance = embedding_importance(request)
        return Scores(
            importance=importance, neighbours=NEIGHBOURS, whole_sentences=True, reused=(VECTORS,) if cached else ()
        )

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        return embedding_flops(request)


def embedding_importance(request: PrefillRequest) -> Tensor:
    """Importance [n] of the target's document tokens, float32."""
    offsets = request.prompt.offsets
    if not len(offsets):
        return torch.zeros(0)
    encoder = load_encoder(request.pair.target.device)
    starts = offsets[::PIECE, 0]
    cache = request.draft_prefixes
    english, asked = english_of(request)

    def compute() -> DocumentVectors:
        if english is None:
            return encoder.document_vectors(request.document_text, starts)
        return encoder.document_vectors(english.text, starts, english.places)

    def find_or_compute() -> DocumentVectors:
        if not request.collection.kept:
            return compute()
        with DiskCache() as disk:
            key = f"vectors {__version__} {encoder.weights['words'].dtype} {identity(request)}"
            with suppress(SafetensorError, TypeError):
                return DocumentVectors(**load(disk.find(key) or b""))
            vectors = compute()
            disk.store(key, save(vars(vectors)), os.path.realpath(request.collection.documents[0].name))
        return vectors

    vectors = find_or_compute() if cache is None else cache.embeddings.find_or(identity(request), find_or_compute)
    question, sentence_starts = encoder.question_vectors(asked), sentences_of(request.document_text)[:, 0]
    pieces = (SHARPNESS * vectors.chunk_similarity(question)).softmax(0).repeat_interleave(PIECE)[: len(offsets)]
    if not len(sentence_starts):
        return pieces
    sentences = (SENTENCE_SHARPNESS * vectors.sentence_similarity(question, sentence_starts)).softmax(0)
    sentence_of = range_of_tokens(sentence_starts, torch.tensor(offsets[:, 0]))
    return blend(pieces, sentences[sentence_of], 1.0)


def english_of(request: PrefillRequest) -> tuple[Gloss | None, str]:
    """The English of a request's document, None where it is English or has no glossary, and of its question."""
    language = language_of(request.document_text)
    question = gloss(request.question, language_of(request.question, language))
    return gloss(request.document_text, language), request.question if question is None else question.text


def has_vectors(request: PrefillRequest) -> bool:
    """Whether a cache holds the document's vectors."""
    return request.draft_prefixes is not None and identity(request) in request.draft_prefixes.embeddings


def identity(request: PrefillRequest) -> str:
    """What determines the vectors: the text, and where its pieces begin."""
    starts = np.ascontiguousarray(request.prompt.offsets[::PIECE, 0], dtype=np.int64)
    digest = hashlib.sha256(request.document_text.encode("utf-8", "surrogatepass"))
    digest.update(starts.tobytes())
    return digest.hexdigest()


def embedding_flops(request: PrefillRequest) -> float:
    """FLOPs of the encoder; 0 where a cache holds the vectors."""
    return 0.0 if has_vectors(request) else encoder_flops(request.document_tokens)
