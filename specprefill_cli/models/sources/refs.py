"""How a model is named, and what follows from its name: where it is, how it loads, whether it may be fetched."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import BUNDLED_FOLDER, SMOLLM2_FOLDER
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.conversion import Conversion, Step
from specprefill_cli.models.sources.hub_gguf import cached_file, is_gguf_name

# Prefix of the bundled models' names.
BUNDLED = "tiny:"
EXAMPLE = "http://localhost:11434/v1#qwen2.5:7b"
# Where Ollama, vLLM, llama.cpp and OpenAI have their API.
USUAL_PATH = "/v1"
# Sent in place of a key; servers without keys accept it.
NO_KEY = "none"


# Only a hub id may be fetched; only an endpoint has no weights here.
Kind = Enum("Kind", "BUNDLED PACKAGED FILE FOLDER ENDPOINT HUB HUB_FILE")


@dataclass(frozen=True)
class ModelRef:
    """A model by its name, as messages show it. packed: whether a large GGUF file is kept and run in int8."""

    name: str
    packed: bool = False

    @property
    def kind(self) -> Kind:
        if self.name.startswith(BUNDLED):
            return Kind.BUNDLED
        if self.name in (smollm2.TARGET, smollm2.BASE):
            return Kind.PACKAGED
        if self.name.lower().startswith(("http://", "https://")):
            return Kind.ENDPOINT
        if self.name.lower().endswith(".gguf"):
            return Kind.FILE
        if Path(self.name).is_dir():
            return Kind.FOLDER
        return Kind.HUB_FILE if is_gguf_name(self.name) else Kind.HUB

    @property
    def file(self) -> Path | None:
        """Its GGUF file: in a package, in the hub's cache, or of its name; None for other models, and where it is absent."""
        if self.kind is Kind.PACKAGED:
            return smollm2.package_file()
        if self.kind is Kind.HUB_FILE:
            return cached_file(self.name)
        return Path(self.name) if self.kind is Kind.FILE and Path(self.name).is_file() else None

    @property
    def conversion(self) -> Conversion | None:
        """How its GGUF file becomes a folder, if it has one. Raises SpecprefillError for a missing file."""
        if self.kind not in (Kind.PACKAGED, Kind.FILE, Kind.HUB_FILE):
            return None
        is_packaged, file = self.kind is Kind.PACKAGED, self.file
        if file is None:
            fault = "no such file; give the path of a GGUF file on this machine"
            if is_packaged:
                install = smollm2.install_command()
                fault = f"its weights are not on this machine; install them with {install}, or use --pair tiny"
            raise SpecprefillError(f"{self.name}: {fault}")
        return Conversion.of(file, self.packed, SMOLLM2_FOLDER if self.name == smollm2.TARGET else None)

    def source(self, step: Step = lambda _percent, _text: None) -> dict[str, str]:
        """Where it is, for `from_pretrained`, converted first if need be. Raises SpecprefillError without files."""
        place, conversion = Path(self.name), self.conversion
        if self.kind is Kind.ENDPOINT:
            problem = f"{self.name}: an endpoint has no weights here; only ask, batch, compare and evaluate take one"
            raise UsageError(problem)
        if self.kind is Kind.BUNDLED:
            place = BUNDLED_FOLDER / self.name.removeprefix(BUNDLED)
        elif conversion is not None:
            conversion.convert(step)
            place = conversion.folder
        return {"pretrained_model_name_or_path": self.name if self.kind is Kind.HUB else str(place)}


@dataclass(frozen=True)
class EndpointRef:
    """The base address of the API, without a slash at its end, and the model that answers."""

    url: str
    model: str

    @property
    def name(self) -> str:
        """As given to `--target`."""
        return f"{self.url}#{self.model}"


def is_endpoint(target: str | None) -> bool:
    """Whether a target, if named, is behind an endpoint."""
    return target is not None and ModelRef(target).kind is Kind.ENDPOINT


def parse_endpoint(target: str, option: str = "--target", any_model: bool = False) -> EndpointRef:
    """The parts of `URL#MODEL`, or with `any_model` of `URL`; an address without a path gets `/v1`. option: named in errors.

    Raises UsageError for an address without a host or a model, and for an address with a key: messages would show it.
    """
    try:
        address = urlsplit(target)
        # Reading the port checks it.
        complete = bool(address.hostname) and address.port != 0
    except ValueError as error:
        raise UsageError(f"{option}: no valid address ({error}); write URL#MODEL, such as {EXAMPLE}") from error
    if "@" in address.netloc or address.query:
        raise UsageError(f"{option}: an address with a user, a key or a query; leave it out and set OPENAI_API_KEY")
    if not complete or not is_endpoint(target):
        raise UsageError(f"{option} {target}: names no host; write URL#MODEL, such as {EXAMPLE}")
    url = urlunsplit((address.scheme, address.netloc, address.path.rstrip("/") or USUAL_PATH, "", ""))
    if not address.fragment and not any_model:
        raise UsageError(f"{option} {target}: names no model; write {url}#MODEL (`curl {url}/models` lists them)")
    return EndpointRef(url, address.fragment)
