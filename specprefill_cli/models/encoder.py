"""The sentence encoders that ship with the package, tuned to find answers' chunks: all-MiniLM-L6-v2 and multilingual-e5-small.

Both are BERTs of one width; the first, of six layers, reads English, the second, of twelve, every language.

Chunks of a document are encoded late (arXiv 2409.04701): the encoder reads overlapping stretches of text, and a chunk's vector
is the mean of its tokens' final states, so that it reflects the text around the chunk. Single tokens have a short vector too:
each of the question's tokens looks for its best match in a chunk (late interaction, arXiv 2004.12832).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

LAYERS, MULTILINGUAL_LAYERS, HEADS, WIDTH = 6, 12, 12, 384
# The projection of final states to the vectors of single tokens, and the width of these.
TOKENS, TOKEN_WIDTH = "tokens", 64
# Tokens of a question that are compared with a document's at once.
QUESTION_BLOCK = 16
# Tokens of a stretch with its two special tokens, tokens that neighbouring stretches share, and stretches of a pass.
STRETCH, OVERLAP = 256, 32
CPU_BATCH, GPU_BATCH = 4, 64
# The suffix of the name of a matrix's scales, and columns of a 4-bit matrix that share a scale.
SCALE, GROUP = ".scale", 32
# The table of word vectors.
WORDS = "words"


@dataclass(frozen=True, kw_only=True)
class QuestionVectors:
    """A question for the encoder: unit vectors of the whole [WIDTH] and of each token [m, TOKEN_WIDTH], float32 on the CPU."""

    whole: Tensor
    tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class DocumentVectors:
    """A document for the encoder: unit vectors on the CPU.

    chunks: [n, WIDTH] of each chunk, zeros for a chunk without a token
    tokens: [t, TOKEN_WIDTH] of each token; chunk_of, token_starts: [t] its chunk, and the character at which it begins
    """

    chunks: Tensor
    tokens: Tensor
    chunk_of: Tensor
    token_starts: Tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())

    def chunk_similarity(self, question: QuestionVectors) -> Tensor:
        """How near each chunk is to a question: [n], -2 to 2; its cosine with the whole question plus `best_matches`."""
        return self.chunks.float() @ question.whole + self.best_matches(question, self.chunk_of, len(self.chunks))

    def sentence_similarity(self, question: QuestionVectors, starts: np.ndarray) -> Tensor:
        """How well each sentence matches a question's tokens: [n], -1 to 1. starts: [n] characters, ascending."""
        return self.best_matches(question, range_of_tokens(starts, self.token_starts), len(starts))

    def best_matches(self, question: QuestionVectors, range_of: Tensor, count: int) -> Tensor:
        """Mean over the question's tokens of the cosine with their best match in each of `count` ranges: [count].

        range_of: [t] the range of text that each token is in
        """
        tokens, matches = self.tokens.float(), torch.zeros(count)
        for block in question.tokens.split(QUESTION_BLOCK):
            lowest = torch.full((len(block), count), -1.0)
            ranges = range_of.expand(len(block), -1)
            matches = matches + lowest.scatter_reduce(1, ranges, block @ tokens.T, "amax").sum(0)
        return matches / max(1, len(question.tokens))


def range_of_tokens(starts: np.ndarray, token_starts: Tensor) -> Tensor:
    """The range of text [t] that each token is in, where ranges and tokens begin at these characters, both ascending."""
    return (torch.searchsorted(torch.tensor(starts), token_starts, right=True) - 1).clamp(min=0)


@dataclass(frozen=True)
class Encoder:
    """The encoder's weights by name, all on the same device, and its tokenizer."""

    weights: dict[str, Tensor]
    tokenizer: Tokenizer

    @torch.inference_mode()
    def question_vectors(self, question: str) -> QuestionVectors:
        """The vectors of the first `STRETCH` tokens of a question or passage."""
        ids = self.tokenizer.encode(question, add_special_tokens=False).ids[: STRETCH - 2]
        states = self.states(self.framed(torch.tensor([ids], dtype=torch.long)))[0]
        whole = F.normalize(states.float().mean(0), dim=-1).cpu()
        return QuestionVectors(whole=whole, tokens=self.token_vectors(states[1:-1]))

    @torch.inference_mode()
    def document_vectors(self, text: str, starts: np.ndarray) -> DocumentVectors:
        """Vectors of a text's chunks and tokens, float16. starts: [n] characters where the chunks begin, ascending."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        # A token may begin with the space before it, which belongs to the sentence before.
        starts_of = [start + text[start : start + 1].isspace() for start, _ in encoding.offsets]
        token_starts = torch.tensor(starts_of, dtype=torch.long)
        chunk_of = range_of_tokens(starts, token_starts)
        sums, tokens = torch.zeros(len(starts), WIDTH), torch.zeros(len(chunk_of), TOKEN_WIDTH, dtype=torch.float16)
        ids = torch.tensor(encoding.ids, dtype=torch.long)
        stretches = divide(len(ids))
        size = CPU_BATCH if self.weights[WORDS].device.type == "cpu" else GPU_BATCH
        done = 0
        for place in range(0, len(stretches), size):
            batch = stretches[place : place + size]
            states = self.states(self.framed(torch.stack([ids[stretch] for stretch, _ in batch])))[:, 1:-1]
            core = torch.cat([row[kept] for (_, kept), row in zip(batch, states, strict=True)])
            span = slice(done, done + len(core))
            sums.index_add_(0, chunk_of[span], core.float().cpu())
            tokens[span] = self.token_vectors(core)
            done = span.stop
        chunks = F.normalize(sums, dim=-1).half()
        return DocumentVectors(chunks=chunks, tokens=tokens, chunk_of=chunk_of, token_starts=token_starts)

    def token_vectors(self, states: Tensor) -> Tensor:
        """Unit vectors [t, TOKEN_WIDTH] of tokens by their final states [t, WIDTH]; float32 on the CPU."""
        projection = self.weights[TOKENS]
        return F.normalize(F.linear(states.to(projection.dtype), projection).float(), dim=-1).cpu()

    def framed(self, ids: Tensor) -> Tensor:
        """Rows of token ids [rows, tokens] with the special tokens around them."""
        special = torch.tensor([[self.tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]])
        first, last = special.expand(len(ids), 2).split(1, dim=1)
        return torch.cat([first, ids, last], 1)

    @torch.inference_mode()
    def mean_states(self, text: str, layers: Sequence[int]) -> Tensor:
        """The mean states of a text's first `STRETCH` tokens after some layers [layers, WIDTH], float32 on the CPU."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids[: STRETCH - 2]
        of_layers = islice(self.layer_states(self.framed(torch.tensor([ids], dtype=torch.long))), max(layers))
        means = [states[0].float().mean(0).cpu() for states in of_layers]
        return torch.stack([means[layer - 1] for layer in layers])

    def states(self, ids: Tensor) -> Tensor:
        """The final states [rows, tokens, WIDTH] of rows of token ids [rows, tokens] without padding."""
        return deque(self.layer_states(ids), maxlen=1).pop()

    def layer_states(self, ids: Tensor) -> Iterator[Tensor]:
        """Yield the states [rows, tokens, WIDTH] after each layer, of rows of token ids [rows, tokens] without padding."""
        weights = self.weights
        rows, tokens = ids.shape
        hidden = self.norm(self.embedded(ids.to(weights[WORDS].device)) + weights["positions"][:tokens], "norm")
        for number in range(sum(name.endswith("qkv") for name in weights)):
            layer = f"layers.{number}."
            projected = self.linear(hidden, f"{layer}qkv").view(rows, tokens, 3, HEADS, WIDTH // HEADS)
            queries, keys, values = projected.permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)
            hidden = self.norm(hidden + self.linear(attended, f"{layer}attended"), f"{layer}norm")
            wide = F.gelu(self.linear(hidden, f"{layer}up"))
            hidden = self.norm(hidden + self.linear(wide, f"{layer}down"), f"{layer}last_norm")
            yield hidden

    def embedded(self, ids: Tensor) -> Tensor:
        """The vectors [rows, tokens, WIDTH] of token ids; the table stays packed, because a text needs few of its rows."""
        words, scale = self.weights[WORDS][ids], self.weights.get(f"{WORDS}{SCALE}")
        return unpacked(words, None if scale is None else scale[ids]).to(self.weights["positions"].dtype)

    def linear(self, hidden: Tensor, name: str) -> Tensor:
        return F.linear(hidden, self.weights[name], self.weights[f"{name}.bias"])

    def norm(self, hidden: Tensor, name: str) -> Tensor:
        return F.layer_norm(hidden, (WIDTH,), self.weights[name], self.weights[f"{name}.bias"], 1e-12)


def divide(tokens: int) -> list[tuple[slice, slice]]:
    """Stretches of equal size, in order: what is read together, and what is kept of that, counted from its start."""
    size = min(tokens, STRETCH - 2)
    if not size:
        return []
    starts = [*range(0, tokens - size, STRETCH - 2 - OVERLAP), tokens - size]
    edges = [0, *((first + size + second) // 2 for first, second in pairwise(starts)), tokens]
    cores = zip(starts, pairwise(edges), strict=True)
    return [(slice(start, start + size), slice(low - start, high - start)) for start, (low, high) in cores]


def encoder_flops(tokens: int, layers: int = LAYERS) -> float:
    """FLOPs of encoding a document of `tokens` tokens: 2 per weight and token; a token is about a word piece."""
    weights = layers * 12 * WIDTH**2
    attention = layers * 4 * STRETCH * WIDTH
    return (2.0 * weights + attention) * tokens * STRETCH / (STRETCH - 2 - OVERLAP)


def unpacked(coded: Tensor, scale: Tensor | None) -> Tensor:
    """A packed tensor [..., columns] in float32; scale: [..., groups, 1] of 4-bit numbers, else [..., 1], if any."""
    if scale is None:
        return coded.float()
    if coded.dtype == torch.uint8:
        numbers = torch.stack([coded // 16, coded % 16], -1).flatten(-2).unflatten(-1, (-1, GROUP)).float() - 8
        return (numbers * scale.float()).flatten(-2)
    return coded.float() * scale.float()
