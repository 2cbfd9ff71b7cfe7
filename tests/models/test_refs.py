"""Names of models: what they name, where it is; addresses of endpoints: their parts, and what is refused."""

import pytest

from specprefill_cli.errors import UsageError
from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.models.sources.refs import Kind, ModelRef, is_endpoint, parse_endpoint
from tests.helpers.gguf_files import F32, Q8, write_gguf


@pytest.mark.parametrize(("target", "url", "model"), [
    ("http://localhost:11434/v1#qwen2.5:7b", "http://localhost:11434/v1", "qwen2.5:7b"),
    ("https://host/api/v1/#org/model", "https://host/api/v1", "org/model"),
    ("HTTP://[::1]:8000#m", "http://[::1]:8000/v1", "m"),
])  # fmt: skip
def test_an_address_has_a_url_and_a_model(target, url, model):
    ref = parse_endpoint(target)
    assert is_endpoint(target)
    assert (ref.url, ref.model, ref.name) == (url, model, f"{url}#{model}")


@pytest.mark.parametrize(("name", "kind"), [
    ("tiny:draft", Kind.BUNDLED), ("smollm2:target", Kind.PACKAGED), ("HTTPS://host/v1#m.gguf", Kind.ENDPOINT),
    ("org/Model.GGUF", Kind.FILE), (str(BUNDLED_FOLDER), Kind.FOLDER), ("Qwen/Qwen2.5-7B-Instruct", Kind.HUB),
])  # fmt: skip
def test_a_name_tells_its_kind(name, kind):
    assert ModelRef(name).kind is kind
    assert is_endpoint(name) == (kind is Kind.ENDPOINT)


def test_a_file_that_changed_is_converted_anew(cache, tmp_path):
    ref = ModelRef(str(write_gguf(tmp_path / "model.gguf")))
    folder = ref.source()
    write_gguf(tmp_path / "model.gguf", tensor_types=(Q8, F32))
    assert ref.source() != folder


@pytest.mark.parametrize(
    "target", ["http://localhost:11434/v1", "http://localhost#", "http:///v1#m", "http://h:99999/v1#m"]
)
def test_what_is_missing_or_wrong_is_named(target):
    with pytest.raises(UsageError, match="#MODEL"):
        parse_endpoint(target)


@pytest.mark.parametrize("target", ["http://user:secret@host/v1#m", "https://host/v1?key=secret#m"])
def test_a_key_in_an_address_is_refused_and_not_shown(target):
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as raised:
        parse_endpoint(target)
    assert "secret" not in str(raised.value)
