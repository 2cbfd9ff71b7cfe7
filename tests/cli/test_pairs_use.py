"""`pairs use`: checks first, downloads what is missing, changes the config file last, and never half."""

import shutil
from collections import namedtuple
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError

from specprefill_cli.diagnostics import doctor as diagnosis
from specprefill_cli.models import hub
from specprefill_cli.models.pairs import PAIRS, Pair
from specprefill_cli.resources import BUNDLED_FOLDER

Usage = namedtuple("Usage", "total used free")
REVISION = "0" * 40


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The user's config file, which names another pair and a target of its own."""
    path = tmp_path / "config.toml"
    path.write_text('# mine\npair = "qwen3-8b"\ntarget = "./elsewhere"\n')
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(path))
    monkeypatch.delenv("SPECPREFILL_PAIR")
    return path


class FakeHub:
    """Downloads the bundled models under other names into the hub's cache."""

    def __init__(self, cache):
        self.cache = cache
        self.calls = []

    def __call__(self, name, *, allow_patterns, ignore_patterns, local_files_only=False, dry_run=False):
        self.calls.append((name, "dry run" if dry_run else "weights" if "*.safetensors" in allow_patterns else "small"))
        source = BUNDLED_FOLDER / name.rpartition("/")[2]
        folder = self.cache / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / REVISION
        if dry_run:
            return [
                SimpleNamespace(file_size=file.stat().st_size, will_download=not (snapshot / file.name).exists())
                for file in source.iterdir()
            ]
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(REVISION)
        snapshot.mkdir(parents=True, exist_ok=True)
        for pattern in allow_patterns:
            for file in source.glob(pattern):
                shutil.copy(file, snapshot)
        return str(snapshot)


@pytest.fixture
def fake_hub(tmp_path, monkeypatch, config):
    """A hub with one pair, `tried`, which can be reached."""
    fake = FakeHub(tmp_path / "cache")
    monkeypatch.setitem(PAIRS, "tried", Pair("tried", "some/draft", "some/target", "tiny"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(fake.cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "reachable", lambda _endpoint: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def test_a_pair_of_folders_is_set_up_without_the_hub(call, tmp_path, config, monkeypatch):
    for role in ("draft", "target"):
        shutil.copytree(BUNDLED_FOLDER / role, tmp_path / role)
    monkeypatch.setitem(PAIRS, "local", Pair("local", str(tmp_path / "draft"), str(tmp_path / "target"), "tiny"))
    code, out, err = call("pairs", "use", "local")
    assert code == 0
    assert "pair local" in out
    assert f"pair = local in {config}" in err
    assert config.read_text() == '# mine\npair = "local"\n'
    assert f"target is removed from {config}" in err


def test_models_are_downloaded_once_and_answer(call, fake_hub, config, tmp_path):
    code, out, _ = call("pairs", "use", "tried")
    assert code == 0
    assert "pair tried" in out
    assert [kind for _, kind in fake_hub.calls] == ["small", "small", "dry run", "dry run", "weights", "weights"]
    assert config.read_text() == '# mine\npair = "tried"\n'
    (tmp_path / "fee.txt").write_text("The fee is 3 euros. " * 20)
    code, _, err = call("ask", str(tmp_path / "fee.txt"), "What is the fee?", "--offline", "--verbose")
    assert code == 0
    assert "some/target" in err


def test_too_little_memory_changes_nothing(call, fake_hub, config, monkeypatch):
    before = config.read_text()
    monkeypatch.setattr(diagnosis, "main_memory", lambda: (2**20, 2**30))
    code, out, err = call("pairs", "use", "tried")
    assert code == 1
    assert "use a smaller pair" in out
    assert "tried does not fit this machine" in err
    assert {kind for _, kind in fake_hub.calls} == {"small"}
    assert config.read_text() == before


def test_too_little_disk_is_one_line(call, fake_hub, config, monkeypatch):
    before = config.read_text()
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(2**30, 2**30, 2**20))
    code, _, err = call("pairs", "use", "tried")
    assert code == 1
    assert "MiB are to be downloaded, and 1 MiB are free in" in err
    assert "set HF_HOME" in err
    assert "weights" not in {kind for _, kind in fake_hub.calls}
    assert config.read_text() == before


def test_offline_ends_at_once_in_one_line(call, fake_hub, config, monkeypatch):
    before = config.read_text()
    monkeypatch.setattr(hub, "reachable", lambda _endpoint: False)
    code, out, err = call("pairs", "use", "tried")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "some/draft: not in the model cache" in err
    assert fake_hub.calls == []
    assert config.read_text() == before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            TimeoutError("the server is silent"),
            "some/draft: cannot be downloaded (the server is silent); run the",
        ),
        (
            GatedRepoError("no access", response=SimpleNamespace(headers={}, request=None)),
            "some/draft: gated; accept its terms at https://huggingface.co/some/draft, and log in",
        ),
    ],
)
def test_a_failed_download_is_one_line(call, fake_hub, config, monkeypatch, error, words):
    def fails(*_arguments, **_values):
        raise error

    before = config.read_text()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    code, _, err = call("pairs", "use", "tried")
    assert (code, len(err.splitlines())) == (1, 1)
    assert words in err
    assert config.read_text() == before


def test_the_bundled_pair_can_be_taken_again(call, config):
    code, out, _ = call("pairs", "use", "tiny")
    assert code == 0
    assert "pair tiny" in out
    assert config.read_text() == '# mine\npair = "tiny"\n'
