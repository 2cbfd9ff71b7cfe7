"""What short texts ask: the shipped model in wordings that it was not fitted on, and the fit."""

import json
import lzma

import pytest
from safetensors.torch import load_file

from specprefill_cli.models.encoder import WIDTH
from specprefill_cli.models.encoder_files import load_encoder
from specprefill_cli.prefill.intent import KINDS, WEIGHTS, intent_of
from specprefill_cli.training import intent as module
from specprefill_cli.training.synthesis import Block, Question
from tests.helpers.samples import needs_languages


@needs_languages
@pytest.mark.parametrize(("kind", "text"), [
    ("place", "How heavy may a parcel be that I send to Norway?"), ("place", "Wann muss der Schlüssel zurück sein?"),
    ("whole", "Squeeze this into three sentences."), ("whole", "Schreib mir eine Kurzfassung."), ("whole", "把它改写成新闻稿"),
    ("neither", "Please answer in no more than ten words."), ("neither", "Chapter 4: The Lighthouse"),
])  # fmt: skip
def test_wordings_are_known_by_their_meaning(kind, text):
    assert max(KINDS, key=vars(intent_of(text)).get) == kind


def test_a_fit_takes_texts_for_what_they_are(tmp_path, monkeypatch):
    texts = {"place": "What is the fee of boat {}?", "whole": "Translate version {}.", "neither": "Room {} is green."}
    rows = [{"language": "en", "kind": kind, "text": text.format(n)} for kind, text in texts.items() for n in range(9)]
    path = tmp_path / "requests.jsonl.xz"
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    document = Block("The gate is dark green.", (Question("What colour is it?", "dark green", 12),))
    monkeypatch.setattr(module, "written_documents", lambda: [document])
    monkeypatch.setattr(module, "load_encoder", lambda device, _: load_encoder(device))
    monkeypatch.setitem(module.READ_LAYERS, tmp_path, (3, 4))
    monkeypatch.setattr(module, "dev_grams", lambda data: set())
    assert module.fit_intent(path, tmp_path, tmp_path) > 0.95
    assert load_file(tmp_path / WEIGHTS)["weight"].shape == (len(KINDS), 2 * WIDTH)
