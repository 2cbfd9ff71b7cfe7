"""Addresses of endpoints: what is one, its parts, and what is refused."""

import pytest

from specprefill_cli.endpoint.reference import is_endpoint, parse_endpoint
from specprefill_cli.errors import UsageError


@pytest.mark.parametrize(
    ("target", "url", "model"),
    [
        ("http://localhost:11434/v1#qwen2.5:7b", "http://localhost:11434/v1", "qwen2.5:7b"),
        ("https://host/api/v1/#org/model", "https://host/api/v1", "org/model"),
        ("HTTP://[::1]:8000#m", "http://[::1]:8000/v1", "m"),
    ],
)
def test_an_address_has_a_url_and_a_model(target, url, model):
    ref = parse_endpoint(target)
    assert is_endpoint(target)
    assert (ref.url, ref.model, ref.name) == (url, model, f"{url}#{model}")


@pytest.mark.parametrize("target", [None, "Qwen/Qwen2.5-7B-Instruct", "tiny:target", "model.gguf", "httpfolder"])
def test_other_targets_are_no_endpoints(target):
    assert not is_endpoint(target)


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
