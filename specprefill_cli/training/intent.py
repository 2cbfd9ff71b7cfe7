"""Fits what short texts beside a document ask (`prefill/intent.py`) on written requests in many languages."""

import random
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from specprefill_cli.files import ENCODER_FOLDER
from specprefill_cli.models.encoder_files import load_encoder
from specprefill_cli.prefill.intent import KINDS, READ_LAYERS, WEIGHTS
from specprefill_cli.training.corpus import dev_grams, question_groups, read_rows, written_documents

# Requests, and texts that ask nothing, written for this by a large language model and by hand.
REQUESTS = Path(__file__).with_name("requests.jsonl.xz")
# The most characters of a request and of a text beside it, and the share of such pairs.
ASKED_CHARACTERS, SILENT_CHARACTERS = 160, 110
# Questions of question sets, and characters of the shortest line of a document.
SETS, SHORTEST_LINE, RIDGE = 600, 8, 0.01


def fit_intent(requests: Path, data: Path, folder: Path) -> float:
    """Fit the model for an encoder and write it to its folder; returns the share of these rows that it then knows.

    requests: rows with language, kind (of `KINDS`) and text; the English encoder takes the English ones. Only it takes
    those that are `english_only`: tasks about one topic, from which the proxy would learn to thin too boldly
    data: with qa/ and dev/, for questions about an encyclopedia
    """
    rng = random.Random(3)
    is_english = folder == ENCODER_FOLDER
    taken = (
        row for row in read_rows(requests) if (row["language"] == "en" if is_english else "english_only" not in row)
    )
    rows = [(row["language"], row["kind"], row["text"]) for row in taken]
    for number, document in enumerate(written_documents()):
        lines = [line for line in document.text.splitlines() if SHORTEST_LINE <= len(line) <= 400]
        words = rng.choice(lines).split()
        start = rng.randrange(len(words))
        # A line of wrapped prose is a piece of a sentence.
        rows += [("en", "neither", text) for text in (lines[0], rng.choice(lines), " ".join(words[start : start + 10]))]
        if number % 3 == 0:
            rows.append(("en", "place", rng.choice(document.questions).text))
    groups, _ = question_groups(data, dev_grams(data))
    rows += [("en", "place", rng.choice(group.questions)[0]) for group in rng.sample(groups, min(SETS, len(groups)))]
    rows += beside(rows, rng)
    encoder = load_encoder("cpu", folder)
    states = torch.stack([encoder.mean_states(text, READ_LAYERS[folder]).flatten() for _, _, text in rows])
    kinds = torch.tensor([KINDS.index(kind) for _, kind, _ in rows])
    mean, deviation = states.mean(0), states.std(0)
    balance = len(kinds) / (len(KINDS) * kinds.bincount())
    inputs = F.pad((states - mean) / deviation, (0, 1), value=1.0)
    weights = torch.zeros(len(KINDS), inputs.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimizer.zero_grad()
        penalty = RIDGE * weights[:, :-1].square().sum()
        value = F.cross_entropy(inputs @ weights.T, kinds, balance) + penalty
        value.backward()
        return value.item()

    optimizer.step(loss)
    fit = weights.detach()
    scaled = fit[:, :-1] / deviation
    save_file({"weight": scaled, "bias": fit[:, -1] - scaled @ mean}, folder / WEIGHTS)
    return float(((inputs @ fit.T).argmax(1) == kinds).float().mean())


def beside(rows: list[tuple[str, str, str]], rng: random.Random) -> list[tuple[str, str, str]]:
    """Requests with a text before or behind them that asks nothing, in their language."""
    silent: dict[str, list[str]] = {}
    for language, kind, text in rows:
        if kind == "neither" and len(text) < SILENT_CHARACTERS:
            silent.setdefault(language, []).append(text)
    asking = [row for row in rows if row[1] != "neither" and len(row[2]) < ASKED_CHARACTERS]
    pairs = []
    for language, kind, text in rng.sample(asking, min(len(asking), len(rows) // 6)):
        order = [text, rng.choice(silent.get(language, silent["en"]))]
        rng.shuffle(order)
        pairs.append((language, kind, ("" if language in ("zh", "ja") else " ").join(order)))
    return pairs
