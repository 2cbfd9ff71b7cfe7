"""A model in a folder, and a folder for converted models."""

import pytest

from tests.helpers.architectures import build_model


@pytest.fixture
def llama(tokenizer, tmp_path):
    """A folder with a random llama model and the bundled tokenizer."""
    build_model("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder for converted models, still absent."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECPREFILL_MODELS", str(folder))
    return folder
