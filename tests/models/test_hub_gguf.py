"""GGUF files of the hub: their names, the choice among a repository's files, and what the cache holds."""

import gguf
import pytest
import torch
from huggingface_hub import constants

from specprefill_cli.models.loading import load_model
from specprefill_cli.models.machine.placement import Placement
from specprefill_cli.models.sources.gguf import read_gguf
from specprefill_cli.models.sources.hub import ModelNotHere, may_download
from specprefill_cli.models.sources.hub_gguf import cached_file, is_gguf_name, matching_files
from tests.helpers.gguf_files import write_gguf

FILES = ["README.md", "m-q4_k_m.gguf", "m-q8_0-00002-of-00002.gguf", "m-q8_0-00001-of-00002.gguf", "m-iq4_k_m.gguf"]
FILES += ["m-f16.gguf", "mmproj-m-f16.gguf", "m-bf16.gguf", "m-bf16-00001-of-00001.gguf"]


@pytest.mark.parametrize(("name", "files"), [
    ("a/m-GGUF", ["m-q4_k_m.gguf"]), ("a/m:Q4_K_M", ["m-q4_k_m.gguf"]),
    ("a/m-gguf:q8_0", ["m-q8_0-00001-of-00002.gguf", "m-q8_0-00002-of-00002.gguf"]), ("a/m-GGUF:Q2_K", []),
    ("a/m:F16", ["m-f16.gguf"]), ("a/m:BF16", ["m-bf16-00001-of-00001.gguf"]),
])  # fmt: skip
def test_a_quantisation_names_one_file_or_all_its_parts(name, files):
    assert is_gguf_name(name)
    assert matching_files(name, FILES) == files


@pytest.mark.parametrize("name", ["a/m", "m-GGUF", "a/b/c-GGUF", "http://h/v1#m:7b", "a/m:"])
def test_other_names_are_no_files_of_the_hub(name):
    assert not is_gguf_name(name)


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--a--m-GGUF" / "snapshots" / "main"
    folder.mkdir(parents=True)
    return folder


def test_a_file_in_the_cache_loads_by_its_repository(cache, snapshot):
    with pytest.raises(ModelNotHere, match=r"a/m-GGUF: not in the model cache"):
        may_download("a/m-GGUF", offline=True)
    file = write_gguf(snapshot / "m-Q4_K_M.gguf")
    assert cached_file("a/m-GGUF") == file
    by_repository, by_path = (load_model(name, Placement(None), "float32", True) for name in ("a/m-GGUF", str(file)))
    for name, weight in by_path.model.named_parameters():
        assert torch.equal(weight, by_repository.model.get_parameter(name))


def test_all_parts_are_needed_and_read(snapshot):
    whole = {tensor.name for tensor in read_gguf(write_gguf(snapshot / "whole.gguf")).tensors}
    first, second = (snapshot / f"m-q8_0-{number:05}-of-00002.gguf" for number in (1, 2))
    write_gguf(first)
    assert cached_file("a/m-GGUF:Q8_0") is None
    writer = gguf.GGUFWriter(second, "llama")
    writer.add_tensor("blk.9.attn_norm.weight", torch.ones(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert cached_file("a/m-GGUF:Q8_0") == first
    assert {tensor.name for tensor in read_gguf(first).tensors} == whole | {"blk.9.attn_norm.weight"}
