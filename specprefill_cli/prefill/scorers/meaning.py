"""Scorers `embedding`, how near the meaning of each place is to the question's, and `blend`, which adds the heads.

The heads find what a question says in the document's words, the encoder what it says in other words: the more of
its words stand together, the more the heads count. An encoder of its own reads other languages than English; where
no document is in English, the bundled draft, which reads nothing else, does not run, and words count instead.
"""

import hashlib
import os
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specprefill_cli.caches import DiskCache
from specprefill_cli.documents.language import ENGLISH, language_of
from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.files import ENCODER_FOLDER, MULTILINGUAL_FOLDER
from specprefill_cli.models.encoder import (
    LAYERS,
    MULTILINGUAL_LAYERS,
    DocumentVectors,
    Encoder,
    encoder_flops,
    range_of_tokens,
)
from specprefill_cli.models.encoder_files import INSTALL, has_encoder, load_encoder
from specprefill_cli.prefill.bm25 import coverage, hold_rare_identifier, word_scores
from specprefill_cli.prefill.importance import blend, to_distribution
from specprefill_cli.prefill.request import EncodedQuestion, PrefillRequest
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, AutoBudget, Scorer, Scores, lexical_importance
from specprefill_cli.prefill.scorers.heads import HeadsScorer

# Document tokens of a piece that has a vector, whatever `chunk_size` is: longer pieces say less about where the answer is.
PIECE = 32
# Factors of the similarities of pieces (as in the encoder's training) and of sentences before the softmax.
SHARPNESS, SENTENCE_SHARPNESS = 20.0, 30.0
VECTORS = "document embeddings"
# Part of their keys on disk: raise it with another encoder.
VERSION = 5
# Weight of the heads with BM25, against 1 for the encoder, where a place holds all of the question's words.
HEADS_WEIGHT = 2.0
# The best sentences whose other words lead to a second place, and the weight of such places against 1 for all else.
LINKING, LINK_WEIGHT = 2, 0.25
# With it, questions in a document's words keep a sixteenth of some 4,000 tokens, others an eighth.
AUTO_BUDGET = AutoBudget(share=0.6, tokens=2_048)
WEAK = "the choice of text was never measured in the documents' language ({language}): --keep auto keeps more"
BY_WORDS = "without an encoder for other languages than English, words alone choose the text; it comes with {command}"
# The languages, beside English, in which the choice was measured.
MEASURED = frozenset("de es fr it ja nl pl pt ru zh".split())
# For other languages than English, where the choice is less sure; with it, an eighth of some 3,000 tokens is kept.
FOREIGN_BUDGET = AutoBudget(share=0.7, tokens=2_048)
# For languages in which the choice was never measured.
WEAK_BUDGET = AutoBudget(share=0.8, tokens=4_096)


class EmbeddingScorer(Scorer):
    """The mean of two distributions by similarity with the question: over the document's pieces and over its sentences."""

    name = "embedding"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            cached = has_vectors(request)
            importance = embedding_importance(request)
        reused = (VECTORS,) if cached else ()
        return Scores(importance=importance, neighbours=NEIGHBOURS, whole_sentences=True, reused=reused)

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        return embedding_flops(request)


def embedding_importance(request: PrefillRequest) -> Tensor:
    """Importance [n] of the target's document tokens, float32."""
    offsets = request.prompt.offsets
    if not len(offsets):
        return torch.zeros(0)
    cache, compute = request.draft_prefixes, partial(document_vectors, request)
    vectors = compute() if cache is None else cache.embeddings.find_or(identity(request), compute)
    question = encoder_of(request).question_vectors(request.question)
    sentence_starts = sentences_of(request.collection.text)[:, 0]
    pieces = (SHARPNESS * vectors.chunk_similarity(question)).softmax(0).repeat_interleave(PIECE)[: len(offsets)]
    if not len(sentence_starts):
        return pieces
    sentences = (SENTENCE_SHARPNESS * vectors.sentence_similarity(question, sentence_starts)).softmax(0)
    sentence_of = range_of_tokens(sentence_starts, torch.tensor(offsets[:, 0]))
    return blend(pieces, sentences[sentence_of], 1.0)


def linked_importance(request: PrefillRequest, importance: Tensor, meaning: Tensor) -> Tensor:
    """Importance [n] of sentences that share words with the best ones which the question lacks, as far as they mean the same.

    A question whose facts stand in two places often names but one of them (feedback of this kind: Rocchio 1971).
    importance: [n] by which the best are found; meaning: [n] by the encoder
    """
    text = request.collection.text
    sentences = sentences_of(text)
    linked, starts = torch.zeros(len(importance)), sentences[:, 0]
    if not len(starts):
        return linked
    sentence_of = range_of_tokens(starts, torch.tensor(request.prompt.offsets[:, 0]))
    means = torch.zeros(len(starts)).scatter_reduce(0, sentence_of, importance, "mean", include_self=False)
    for mean, best in zip(*means.topk(min(LINKING, len(means))), strict=True):
        begin, end = sentences[int(best)]
        scores = torch.from_numpy(word_scores(text[begin:end], text, starts, request.question)).float()
        scores[best] = 0.0
        linked += mean * to_distribution(scores[sentence_of] * meaning.sqrt())
    return linked


def document_vectors(request: PrefillRequest) -> DocumentVectors:
    """The vectors of a document's pieces and words, from the disk if they are kept there."""
    encoder, kept = encoder_of(request), request.collection.kept
    key = f"vectors {VERSION} {encoder.weights['positions'].dtype} {identity(request)}"
    with DiskCache() if kept else nullcontext() as disk:
        with suppress(SafetensorError, TypeError):
            return DocumentVectors(**load((disk and disk.find(key)) or b""))
        vectors = encoder.document_vectors(request.collection.text, request.prompt.offsets[::PIECE, 0])
        if disk is not None:
            disk.store(key, save(vars(vectors)), os.path.realpath(request.collection.documents[0].name))
    return vectors


def reads_all_in_english(request: PrefillRequest) -> bool:
    """Whether documents and question are in English, so that the English encoder reads them."""
    language = language_of(request.question, language_of(request.collection.text))
    return {*request.collection.languages, language} == {ENGLISH}


def folder_of(request: PrefillRequest) -> Path:
    """The folder of the encoder that reads documents and question."""
    return ENCODER_FOLDER if reads_all_in_english(request) else MULTILINGUAL_FOLDER


def encoder_of(request: PrefillRequest) -> Encoder:
    """The encoder that reads documents and question."""
    return load_encoder(request.pair.target.device, folder_of(request))


def has_vectors(request: PrefillRequest) -> bool:
    """Whether the memory holds the document's vectors."""
    return request.draft_prefixes is not None and identity(request) in request.draft_prefixes.embeddings


def identity(request: PrefillRequest) -> str:
    """What determines the vectors: the text, where its pieces begin, and the encoder."""
    starts = np.ascontiguousarray(request.prompt.offsets[::PIECE, 0], dtype=np.int64)
    digest = hashlib.sha256(request.collection.text.encode("utf-8", "surrogatepass"))
    digest.update(starts.tobytes())
    return f"{digest.hexdigest()} {reads_all_in_english(request)}"


def embedding_flops(request: PrefillRequest) -> float:
    """FLOPs of the encoder; 0 where a cache holds the vectors."""
    layers = LAYERS if reads_all_in_english(request) else MULTILINGUAL_LAYERS
    is_read = has_encoder(folder_of(request)) and not has_vectors(request)
    return encoder_flops(request.document_tokens, layers) if is_read else 0.0


class BlendScorer(HeadsScorer):
    """The importance of `heads` mixed with that of `embedding`."""

    name = "blend"

    def score(self, request: PrefillRequest) -> Scores:
        cached, languages = has_vectors(request), request.collection.languages
        if reads_english(request):
            scores = super().score(request)
        else:
            with request.clock.phase("scoring"):
                importance = self.finish(request, None)
            scores = Scores(importance=importance, neighbours=self.neighbours)
        weak = sorted(set(languages) - MEASURED - {ENGLISH})
        missing = () if has_encoder(folder_of(request)) else (BY_WORDS.format(command=INSTALL),)
        warnings = (*scores.warnings, *(WEAK.format(language=language) for language in weak), *missing)
        reused = (*scores.reused, VECTORS) if cached else scores.reused
        budget = scores.auto_budget if reads_all_in_english(request) else self.general_budget(request)
        return replace(scores, whole_sentences=True, warnings=warnings, reused=reused, auto_budget=budget)

    def finish(self, request: PrefillRequest, importance: Tensor | None) -> Tensor:
        """Mix in meaning and words. importance: [n] by the draft's heads; None: it did not run."""
        if not len(request.prompt.offsets):
            return torch.zeros(0)
        covered = coverage(request.question, request.collection.text, request.chunk_starts)
        meaning = embedding_importance(request) if has_encoder(folder_of(request)) else lexical_importance(request)
        if importance is None:
            mixed = blend(meaning, lexical_importance(request), covered)
        else:
            mixed = blend(meaning, super().finish(request, importance), HEADS_WEIGHT * covered)
        if reads_all_in_english(request):
            linked = to_distribution(linked_importance(request, mixed, meaning))
            mixed = mixed + LINK_WEIGHT * mixed.sum() * linked
        # Chunks with a rare identifier of the question come first: `B077` and `B078` mean the same.
        holds = request.of_tokens(hold_rare_identifier(request.question, request.collection.text, request.chunk_starts))
        return mixed + holds * mixed.topk(min(request.chunk_size, len(mixed))).values.mean()

    def general_budget(self, request: PrefillRequest) -> AutoBudget:
        if reads_all_in_english(request):
            return AUTO_BUDGET
        is_measured = {*request.collection.languages} <= {ENGLISH, *MEASURED} and has_encoder(folder_of(request))
        return FOREIGN_BUDGET if is_measured else WEAK_BUDGET

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        by_heads = super().cost(request, with_overhead) if reads_english(request) else 0.0
        return by_heads + embedding_flops(request)


def reads_english(request: EncodedQuestion) -> bool:
    """Whether the bundled draft runs: a document is in English, or there is none."""
    return ENGLISH in (request.collection.languages or (ENGLISH,))
