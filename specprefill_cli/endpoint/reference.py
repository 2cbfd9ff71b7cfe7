"""An endpoint as a target: the address of an OpenAI-compatible server, and the name of a model there."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from specprefill_cli.errors import UsageError

SCHEMES = ("http://", "https://")
EXAMPLE = "http://localhost:11434/v1#qwen2.5:7b"
# Where Ollama, vLLM, llama.cpp and OpenAI have their API.
USUAL_PATH = "/v1"
# What stands for a key where there is none; servers without keys accept it.
NO_KEY = "none"


@dataclass(frozen=True)
class EndpointRef:
    """The base address of the API, without a slash at its end, and the model that answers."""

    url: str
    model: str

    @property
    def name(self) -> str:
        """As it stands behind `--target`."""
        return f"{self.url}#{self.model}"


def is_endpoint(target: str | None) -> bool:
    """Whether a target is an address and no hub id, folder or file."""
    return target is not None and target.lower().startswith(SCHEMES)


def parse_endpoint(target: str) -> EndpointRef:
    """The parts of `URL#MODEL`. Raises UsageError where `parse_address` does, and for an address without a model."""
    ref = parse_address(target, "--target")
    if not ref.model:
        raise UsageError(
            f"--target {target}: names no model; write {ref.url}#MODEL (`curl {ref.url}/models` lists them)"
        )
    return ref


def parse_address(target: str, option: str) -> EndpointRef:
    """The parts of `URL` or `URL#MODEL`; an address without a path gets `/v1`. option: what it was given to.

    Raises UsageError for an address without a host, and for one that holds a key, which messages would show.
    """
    try:
        parts = urlsplit(target)
        # Reading the port checks it.
        complete = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise UsageError(f"{option}: no valid address ({error}); write URL#MODEL, such as {EXAMPLE}") from error
    if "@" in parts.netloc or parts.query:
        raise UsageError(f"{option}: an address with a user, a key or a query; leave it out and set OPENAI_API_KEY")
    if not complete or not is_endpoint(target):
        raise UsageError(f"{option} {target}: names no host; write URL#MODEL, such as {EXAMPLE}")
    url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or USUAL_PATH, "", ""))
    return EndpointRef(url, parts.fragment)
