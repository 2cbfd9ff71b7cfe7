"""A model that is neither here nor can be downloaded is one line at once, which says why and what to do."""

from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.sources import hub
from specprefill_cli.models.sources.hub import ModelNotHere, may_download, reachable, source_of

NAME = "somebody/a-model"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A hub cache that holds the configuration of `NAME`."""
    revision = "0" * 40
    folder = tmp_path / "models--somebody--a-model"
    (folder / "snapshots" / revision).mkdir(parents=True)
    (folder / "snapshots" / revision / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.fixture
def hub_answers(monkeypatch):
    """Decides whether the hub can be reached."""

    def decide(answers):
        monkeypatch.setattr(hub, "reachable", lambda _endpoint: answers)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    decide(True)
    return decide


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize(("offline", "variable", "answers", "words"), [
    (True, False, True, "leave out --offline to download it"),
    (False, True, True, "HF_HUB_OFFLINE is set; unset it"),
    (False, False, False, f"{constants.ENDPOINT} cannot be reached; check the network, .* use --offline"),
])  # fmt: skip
def test_a_model_that_is_not_here_is_one_line(empty_cache, hub_answers, monkeypatch, offline, variable, answers, words):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", variable)
    hub_answers(answers)
    message = rf"^{NAME}: not in the model cache {constants.HF_HUB_CACHE}.*{words}"
    with pytest.raises(ModelNotHere, match=message) as raised:
        may_download(NAME, offline)
    assert "--pair tiny" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_in_the_cache_is_used_without_the_hub(cached, hub_answers):
    assert may_download(NAME, offline=False)
    assert not may_download(NAME, offline=True)
    hub_answers(False)
    assert source_of(NAME, offline=False)["local_files_only"]


def test_bundled_models_and_folders_need_no_hub(empty_cache, hub_answers, tmp_path):
    hub_answers(False)
    assert all(source_of(name, offline=False)["local_files_only"] for name in ("tiny:draft", str(tmp_path)))


def test_an_endpoint_without_a_connection_is_not_reachable():
    assert not reachable("http://127.0.0.1:9")


@pytest.mark.parametrize(("error", "words"), [
    (TimeoutError("the server is silent"), "cannot be downloaded (the server is silent); run the command again"),
    (GatedRepoError("no access", response=SimpleNamespace(headers={}, request=None)), "gated; accept its terms at"),
])  # fmt: skip
def test_a_failed_download_is_one_line(hub_answers, empty_cache, monkeypatch, error, words):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
    with pytest.raises(SpecprefillError) as failure:
        hub.adapter_folder(NAME, offline=False)
    assert str(failure.value).startswith(f"{NAME}: {words}")
    assert len(str(failure.value).splitlines()) == 1
