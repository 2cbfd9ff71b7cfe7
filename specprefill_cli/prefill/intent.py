"""What short texts beside a document ask: for one place of it, for all of it, or nothing.

A linear model reads the mean states of some layers of a bundled encoder, whatever the wording.
`python -m specprefill_cli.training intent` fits it.
"""

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

from safetensors.torch import load_file
from torch import Tensor

from specprefill_cli.documents.language import ENGLISH, language_of
from specprefill_cli.files import ENCODER_FOLDER, MULTILINGUAL_FOLDER
from specprefill_cli.models.encoder_files import has_encoder, load_encoder

WEIGHTS = "intent.safetensors"
# Layers whose mean states are read, by encoder.
READ_LAYERS = {MULTILINGUAL_FOLDER: (9, 10), ENCODER_FOLDER: (3, 4, 5)}
KINDS = ("place", "whole", "neither")
# Above this probability a question needs the whole document, whatever it costs to read it.
SURE = 0.85
# English counts and lists, which look like questions about one place.
COUNTED = re.compile(
    r"^\W*(?:please )?(?:list|count|enumerate|outline)\b"
    r"|\b(?:list (?:all|every)|altogether|how many\b.{1,60}\b(?:are|is) (?:there|listed|named|mentioned))\b",
    re.IGNORECASE,
)
# Texts whose intent is remembered, as instructions come again with every request, and the characters of one that are read.
REMEMBERED, LONGEST = 4_096, 1_000

# Threads that ask at once load an encoder once, and go on in their order.
LOADING = Lock()


@dataclass(frozen=True)
class Intent:
    """The probabilities of what a text asks: for one place of a document, for what needs all of it, or nothing."""

    place: float
    whole: float
    neither: float


def intent_of(text: str, encoder: Path = MULTILINGUAL_FOLDER) -> Intent:
    """What a text asks, by its beginning. encoder: its folder; the English one takes the place of a missing one."""
    # A lone surrogate has no token.
    beginning = text[:LONGEST].encode(errors="replace").decode()
    with LOADING:
        return remembered_intent(beginning, encoder if has_encoder(encoder) else ENCODER_FOLDER)


@lru_cache(maxsize=REMEMBERED)
def remembered_intent(text: str, encoder: Path) -> Intent:
    """`intent_of` a text of at most `LONGEST` characters."""
    states = load_encoder("cpu", encoder).mean_states(text, READ_LAYERS[encoder]).flatten()
    weights = load_weights(encoder)
    return Intent(*(weights["weight"] @ states + weights["bias"]).softmax(0).tolist())


@cache
def load_weights(encoder: Path) -> dict[str, Tensor]:
    """The linear model for an encoder: weight [kinds, layers * WIDTH] and bias [kinds]."""
    return load_file(encoder / WEIGHTS)


def is_about_everything(question: str) -> bool:
    """Whether a question needs the whole document; English ones are read by the encoder that `blend` has loaded."""
    encoder = ENCODER_FOLDER if language_of(question) == ENGLISH else MULTILINGUAL_FOLDER
    return COUNTED.search(question) is not None or intent_of(question, encoder).whole > SURE
