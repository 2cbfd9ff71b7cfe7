"""Teaches the sentence encoder to find the chunk of a document that answers a question.

all-MiniLM-L6-v2 learned to compare whole sentences. Here it learns what the scorer `embedding` asks of it: of the vectors of a
document's chunks, encoded late (arXiv 2409.04701), the answer's chunk shall be nearest to the question's vector. Documents are
neighbouring contexts of a question set, or whole written documents; the other chunks of the document are the negatives.
The encoder of all languages learns it from documents in several languages, too.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from specprefill_cli.files import ENCODER_FOLDER
from specprefill_cli.models.encoder import (
    STRETCH,
    TOKEN_WIDTH,
    TOKENS,
    WIDTH,
    WORDS,
    DocumentVectors,
    Encoder,
    QuestionVectors,
    divide,
)
from specprefill_cli.models.encoder_files import WEIGHTS, load_encoder
from specprefill_cli.models.machine.quantization import cpu_has_bfloat16
from specprefill_cli.training.corpus import ContextQuestions, dev_grams, question_groups
from specprefill_cli.training.encoder import packed
from specprefill_cli.training.synthesis import Block, Question, join_blocks
from specprefill_cli.training.updates import Schedule, run_updates

# Multiple of the cosines whose softmax is trained, and tokens of a chunk; chunks of the target's tokenizer differ in length.
SHARPNESS, CHUNK_TOKENS = 20.0, (28, 38)
CHARACTERS = (3_000, 9_000)
QUESTIONS = 24
# Documents of an update, and the share of written ones.
DOCUMENTS, WRITTEN = 4, 0.7
# Documents whose tokens determine the first projection.
PROJECTION_DOCUMENTS, FOREIGN_SAMPLES = 25, 10
# For measuring: shares of the chunks, and tokens of a chunk.
MEASURED_RATIOS, MEASURED_CHUNK = (0.05, 0.1), 32


def neighbouring_contexts(
    groups: Sequence[ContextQuestions], rng: random.Random, characters_between: tuple[int, int] = CHARACTERS
) -> Block:
    """A document of consecutive contexts of the same set, with some of their questions."""
    size, place = rng.uniform(*characters_between), rng.randrange(len(groups))
    source, contexts, characters = groups[place].source, [], 0
    while characters < size and place < len(groups) and groups[place].source == source:
        group = groups[place]
        contexts.append(Block(group.context, tuple(Question(*question) for question in group.questions)))
        characters += len(group.context)
        place += 1
    return some_questions(join_blocks(contexts, "\n\n"), rng)


def some_questions(document: Block, rng: random.Random) -> Block:
    """The document with at most `QUESTIONS` of those questions that it answers."""
    answered = answerable(document)
    return replace(answered, questions=tuple(rng.sample(answered.questions, min(QUESTIONS, len(answered.questions)))))


def answerable(document: Block) -> Block:
    """The document with those questions that it answers."""
    return replace(document, questions=tuple(question for question in document.questions if question.start >= 0))


def question_probabilities(encoder: Encoder, document: Block, chunk_tokens: int) -> tuple[Tensor, Tensor]:
    """Importance [questions, chunks] as the scorer gives it, neighbours added, and which chunks hold the answer (bool)."""
    encoding = encoder.tokenizer.encode(document.text, add_special_tokens=False)
    token_starts = torch.tensor([start for start, _ in encoding.offsets])
    ids = torch.tensor(encoding.ids)
    count = -(-len(ids) // chunk_tokens)
    chunks = torch.arange(len(ids)) // chunk_tokens
    stretches = divide(len(ids))
    rows = torch.stack([ids[stretch] for stretch, _ in stretches])
    states = states_of(encoder, encoder.framed(rows))[:, 1:-1]
    core = torch.cat([row[kept] for (_, kept), row in zip(stretches, states, strict=True)])
    sums = torch.zeros(count, core.shape[1]).index_add(0, chunks, core)
    tokens = encoder.token_vectors(core)
    vectors = DocumentVectors(
        chunks=F.normalize(sums, dim=-1), tokens=tokens, chunk_of=chunks, token_starts=token_starts
    )
    similarities = [
        vectors.chunk_similarity(question_vectors(encoder, question.text)) for question in document.questions
    ]
    probabilities = (SHARPNESS * torch.stack(similarities)).softmax(-1)
    padded = F.pad(probabilities, (1, 1))
    smoothed = (probabilities + 0.5 * (padded[:, :-2] + padded[:, 2:])) / 2
    answers = torch.zeros(len(similarities), count, dtype=torch.bool)
    for row, question in enumerate(document.questions):
        place = int(np.searchsorted(token_starts, question.start, side="right")) - 1
        end = int(np.searchsorted(token_starts, question.start + len(question.answer)))
        answers[row, chunks[place : max(end, place + 1)]] = True
    return smoothed, answers


def question_vectors(encoder: Encoder, question: str) -> QuestionVectors:
    """`Encoder.question_vectors`, with its gradient."""
    ids = encoder.tokenizer.encode(question, add_special_tokens=False).ids[: STRETCH - 2]
    states = states_of(encoder, encoder.framed(torch.tensor([ids], dtype=torch.long)))[0]
    return QuestionVectors(whole=F.normalize(states.mean(0), dim=-1), tokens=encoder.token_vectors(states[1:-1]))


def states_of(encoder: Encoder, rows: Tensor) -> Tensor:
    """The final states [rows, tokens, width] of rows of token ids, computed in bfloat16 where the processor has it."""
    with torch.autocast("cpu", torch.bfloat16, enabled=cpu_has_bfloat16()):
        return encoder.states(rows).float()


def loss_of(encoder: Encoder, document: Block, chunk_tokens: int) -> Tensor:
    """Mean over questions of the negative log importance of the answer's chunks."""
    probabilities, answers = question_probabilities(encoder, document, chunk_tokens)
    share = (probabilities * answers).sum(1) / answers.sum(1)
    return -share.clamp(min=1e-9).log().mean()


@torch.no_grad()
def recalls(encoder: Encoder, documents: Sequence[Block]) -> list[float]:
    """Percentage of questions whose answer lies in the best 5 % and in the best 10 % of a document's chunks."""
    kept = [
        [keeps_answers(probabilities, answers, ratio) for ratio in MEASURED_RATIOS]
        for document in documents
        for probabilities, answers in [question_probabilities(encoder, document, MEASURED_CHUNK)]
    ]
    return [round(100 * float(torch.cat(parts).float().mean()), 1) for parts in zip(*kept, strict=True)]


def keeps_answers(probabilities: Tensor, answers: Tensor, ratio: float) -> Tensor:
    """For each question, whether the best `ratio` of the chunks [questions, chunks] holds its whole answer (bool)."""
    best = probabilities.topk(max(1, round(ratio * probabilities.shape[1])), 1).indices
    chosen = torch.zeros_like(answers).scatter(1, best, True)
    return (chosen | ~answers).all(1)


def training_document(groups: Sequence[ContextQuestions], written: Sequence[Block], rng: random.Random) -> Block:
    """A document with questions, for training."""
    if written and rng.random() < WRITTEN:
        return some_questions(rng.choice(written), rng)
    return neighbouring_contexts(groups, rng)


def tune_encoder(
    data: Path,
    written: Sequence[Block],
    held_out: Sequence[Block],
    schedule: Schedule,
    folder: Path,
    source: Path = ENCODER_FOLDER,
    foreign: Sequence[Callable[[random.Random], Block]] = (),
    pack: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> None:
    """Train on question sets and written documents, measure on some of the sets and held-out documents; write the encoder.

    source: the folder of the encoder to begin with; foreign: makers of documents in other languages, one an update from each
    pack: makes of the trained weights what ships; without it they are packed beside the table of words
    """
    groups, _ = question_groups(data, dev_grams(data))
    rng = random.Random(schedule.seed)
    measured = {
        "written": [answerable(document) for document in held_out],
        "sets": [neighbouring_contexts(groups, rng) for _ in range(25)],
    }
    loaded = load_encoder("cpu", source)
    # The table of words ships in 4 bits, so that small changes to it would be lost.
    table = {name: tensor for name, tensor in loaded.weights.items() if name.startswith(WORDS)}
    trained = {name: tensor.float().clone() for name, tensor in loaded.weights.items() if name not in table}
    encoder = replace(loaded, weights=table | trained)
    if TOKENS not in trained:
        samples = [*written[:PROJECTION_DOCUMENTS], *(make(rng) for make in foreign for _ in range(FOREIGN_SAMPLES))]
        centre(encoder, samples)
        encoder.weights[TOKENS] = trained[TOKENS] = principal_directions(encoder, samples)
    for tensor in trained.values():
        tensor.requires_grad_()

    def losses(rng: random.Random, _progress: float) -> Iterator[Tensor]:
        english: Callable[[random.Random], Block] = partial(training_document, groups, written)
        for make in (*[english] * (DOCUMENTS - len(foreign)), *foreign):
            document = make(rng)
            yield loss_of(encoder, document, rng.randint(*CHUNK_TOKENS)) / DOCUMENTS

    def save() -> None:
        tensors = {name: tensor.detach() for name, tensor in trained.items()}
        save_file(pack(tensors) if pack else packed(tensors) | table, folder / WEIGHTS)

    def measure() -> dict[str, list[float]]:
        return {name: recalls(encoder, documents) for name, documents in measured.items()}

    optimizer = torch.optim.AdamW(trained.values(), weight_decay=0.01)
    run_updates(trained, [optimizer], schedule, folder, losses, measure, save)


@torch.no_grad()
def centre(encoder: Encoder, documents: Sequence[Block]) -> None:
    """Move the mean of all final states to 0, by the last offset: where all vectors are near to each other, little is learned."""
    stretches = [encoder.tokenizer.encode(document.text, add_special_tokens=False).ids for document in documents]
    ids = torch.tensor([stretch[: STRETCH - 2] for stretch in stretches if len(stretch) >= STRETCH - 2])
    last = max(
        (name for name in encoder.weights if name.endswith("last_norm.bias")), key=lambda name: int(name.split(".")[1])
    )
    encoder.weights[last] -= states_of(encoder, encoder.framed(ids))[:, 1:-1].mean((0, 1))


@torch.no_grad()
def principal_directions(encoder: Encoder, documents: Sequence[Block]) -> Tensor:
    """The directions [TOKEN_WIDTH, WIDTH] in which the final states of tokens differ most: the projection to begin with."""
    products = torch.zeros(WIDTH, WIDTH)
    for document in documents:
        ids = encoder.tokenizer.encode(document.text, add_special_tokens=False).ids
        rows = torch.stack([torch.tensor(ids[stretch]) for stretch, _ in divide(len(ids))])
        states = F.normalize(states_of(encoder, encoder.framed(rows))[:, 1:-1].flatten(0, 1), dim=-1)
        products += states.T @ states
    return torch.linalg.eigh(products).eigenvectors[:, -TOKEN_WIDTH:].T.contiguous()
