"""The encoder of all languages: its source unpacked, the pieces that are kept, and documents to tune it on."""

import json
import lzma
import random

import numpy as np
import torch

from specprefill_cli.files import MULTILINGUAL_FOLDER
from specprefill_cli.models.encoder import MULTILINGUAL_LAYERS, unpacked
from specprefill_cli.models.encoder_files import (
    SPECIAL,
    PublishedFile,
    load_encoder,
    multilingual_file,
    tokenizer_of,
    unpack_weights,
    with_published,
)
from specprefill_cli.training.multilingual import changes_of, context_documents, kept_pieces, message_documents
from tests.helpers.samples import needs_languages

VOCABULARY = [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), *(("\u2581key", -3.0), ("\u2581", -4.0))]
VOCABULARY += [("k", -5.0), ("e", -5.0), ("y", -5.0), ("s", -5.0), ("\u2581rare", -9.0), ("<mask>", 0.0)]


def test_blocks_of_four_bits_are_unpacked_in_order():
    numbers = np.arange(64).reshape(2, 32) % 16
    content = b"".join(
        np.float16(scale).tobytes() + bytes(row[:16] | row[16:] << 4)
        for scale, row in zip((0.5, -2.0), numbers.astype(np.uint8), strict=True)
    )
    file = PublishedFile(b"...." + content, np.zeros(0), np.zeros(0), {"a": (64, 4)})
    expected = torch.from_numpy(numbers - 8.0) * torch.tensor([[0.5], [-2.0]])
    torch.testing.assert_close(unpacked(*file.blocks("a", 32)), expected.float())
    torch.testing.assert_close(unpacked(*file.blocks("a", 32, np.array([1]))), expected[1:].float())


@needs_languages
def test_changes_of_a_low_rank_are_kept(tmp_path):
    trained = {
        name: t.float() for name, t in load_encoder("cpu", MULTILINGUAL_FOLDER).weights.items() if "layers" in name
    }
    stored = changes_of(trained, MULTILINGUAL_FOLDER) | {"positions": torch.zeros(1)}
    restored, _ = with_published(unpack_weights(stored, torch.float32), PublishedFile.open(multilingual_file()))
    for layer in range(MULTILINGUAL_LAYERS):
        expected = trained[f"layers.{layer}.up"]
        assert (restored[f"layers.{layer}.up"] - expected).norm() < 0.02 * expected.norm()


def test_frequent_pieces_and_single_characters_are_kept():
    assert kept_pieces(VOCABULARY, ["key keys\nkey"]) == list(range(11))
    tokenizer = tokenizer_of(VOCABULARY)
    assert tokenizer.encode("the  KEY\nkeys", add_special_tokens=False).tokens[-2:] == ["\u2581key", "s"]
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3]


def test_messages_are_asked_for_in_the_other_language(tmp_path):
    rows = [{"en": f"Message number {n} of the program", "de": f"Meldung {n} des Programms"} for n in range(80)]
    with lzma.open(tmp_path / "strings-de.jsonl.xz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    make = message_documents(tmp_path)
    for document in (make(random.Random(seed)) for seed in range(4)):
        for question in document.questions:
            assert document.text.startswith(question.answer, question.start)
            assert question.answer.split()[0] != question.text.split()[0]


def test_contexts_of_a_question_set_become_a_document(tmp_path):
    paragraph = {"context": "The mill burnt down in 1910. " * 5, "qas": [{"question": "When?", "answers": []}]}
    paragraph["qas"][0]["answers"] = [{"text": "1910", "answer_start": paragraph["context"].index("1910")}]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph] * 20}]}))
    document = context_documents([path])(random.Random(1))
    assert len(document.questions) > 1
    assert all(document.text.startswith("1910", question.start) for question in document.questions)
