"""Cached prefixes on disk: safetensors files, written whole, bounded in size, checked before use."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specprefill_cli.errors import UsageError, first_line
from specprefill_cli.models.attention_plan import SINKS
from specprefill_cli.models.cache import layer_tensors, restore_state
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.tokenizers import encode_text, fingerprint
from specprefill_cli.prefill.calibration import weights_fingerprint
from specprefill_cli.prefill.prefix_cache import CachedPrefix, token_hash

SUFFIX = ".specprefill.safetensors"
SCRATCH = ".specprefill-partial"
# A partial file older than this was left by a process that was killed.
STALE_SECONDS = 3_600
WORD_BYTES = 8
# Characters from which reading the tokens of a text from disk pays.
LONG_TEXT = 100_000
TOKEN_NAMES, VECTOR_NAMES = ("ids", "offsets"), ("embeddings",)
# Part of every identity, so that a file of another format is never read.
FORMAT = "2"


@dataclass
class DiskCache:
    """Prefixes and tokens in a folder; the least recently used are removed where they exceed `capacity_bytes`.

    warn: called with one line for every file that cannot be used or written; what it held is then computed again
    texts_found: how often `encode` found the tokens of a text

    Raises UsageError when the folder cannot be made.
    """

    folder: Path
    capacity_bytes: int
    warn: Callable[[str], None]
    revisions: dict[str, str] = field(default_factory=dict, init=False)
    texts_found: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--cache-dir {self.folder}: cannot be made ({error.strerror}); give another") from error

    def holds(self, loaded: LoadedModel, tokens: Tensor, layers: int, window: int | None) -> bool:
        """Whether there is a file for these tokens with at least `layers` layers; whether it is whole, `load` sees."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path(self.identity(loaded, tokens, window)), framework="pt") as file:
                return header_of(file)["layers"] >= layers
        except (SafetensorError, OSError, ValueError, KeyError, TypeError):
            return False

    def load(self, loaded: LoadedModel, tokens: Tensor, layers: int, window: int | None) -> CachedPrefix | None:
        """The prefix of these tokens in at least `layers` layers; None where there is none, or it is damaged."""
        identity = self.identity(loaded, tokens, window)
        stored = self.load_tensors(
            self.path(identity), "state", lambda header: kv_names(header["layers"], layers), identity
        )
        if not stored:
            return None
        pairs = list(zip(stored[::2], stored[1::2], strict=True))
        return CachedPrefix(state=restore_state(loaded.model, pairs), tokens=len(tokens), layers=len(pairs))

    def save(self, loaded: LoadedModel, tokens: Tensor, prefix: CachedPrefix, window: int | None) -> None:
        """Write a prefix so that its file is complete at any moment; then remove what exceeds the limit."""
        pairs = layer_tensors(prefix.state, prefix.tokens, prefix.layers)
        tensors = [tensor.cpu().contiguous() for pair in pairs for tensor in pair]
        size = sum(tensor.nbytes for tensor in tensors)
        if size > self.capacity_bytes:
            self.warn(f"{self.folder}: a document state of {size / 2**30:.1f} GiB exceeds --cache-limit; not stored")
            return
        identity = self.identity(loaded, tokens, window)
        header = {"identity": identity, "layers": prefix.layers}
        self.save_tensors(self.path(identity), kv_names(prefix.layers), tensors, header)

    def write(self, path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Write a file whole, then remove what exceeds the limit; a warning where that fails."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            handle, scratch = tempfile.mkstemp(dir=self.folder, suffix=SCRATCH)
            os.close(handle)
            try:
                save_file(tensors, scratch, metadata={"specprefill": json.dumps(header)})
                os.replace(scratch, path)
            finally:
                Path(scratch).unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            self.warn(f"{self.folder}: document state not stored ({reason(error)})")
            return
        try:
            self.trim()
        except OSError as error:
            self.warn(f"{self.folder}: older document states not removed ({reason(error)})")

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """`encode_text`; the tokens of a long text are read from disk, or written there."""
        if len(text) < LONG_TEXT:
            return encode_text(tokenizer, text)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        path = self.path({"format": FORMAT, "tokenizer": fingerprint(tokenizer), "text": digest})
        stored = self.load_tensors(path, "tokens", lambda _header: TOKEN_NAMES)
        if stored is not None:
            self.texts_found += 1
            return stored[0].tolist(), stored[1].numpy()
        ids, offsets = encode_text(tokenizer, text)
        self.save_tensors(path, TOKEN_NAMES, (torch.tensor(ids), torch.from_numpy(offsets)), {})
        return ids, offsets

    def load_vectors(self, identity: str) -> Tensor | None:
        """A document's embeddings; None where there are none, or they are damaged."""
        stored = self.load_tensors(self.vectors_path(identity), "embeddings", lambda _header: VECTOR_NAMES)
        return None if stored is None else stored[0]

    def save_vectors(self, identity: str, vectors: Tensor) -> None:
        """Write a document's embeddings."""
        self.save_tensors(self.vectors_path(identity), VECTOR_NAMES, (vectors,), {})

    def has_vectors(self, identity: str) -> bool:
        """Whether there is a file of a document's embeddings; whether it is whole, `load_vectors` sees."""
        return self.vectors_path(identity).exists()

    def vectors_path(self, identity: str) -> Path:
        return self.path({"format": FORMAT, "vectors": identity})

    def save_tensors(self, path: Path, names: Sequence[str], tensors: Sequence[Tensor], header: dict[str, Any]) -> None:
        """Write tensors that `load_tensors` reads."""
        self.write(path, dict(zip(names, tensors, strict=True)), {**header, "checksum": checksum(tensors)})

    def load_tensors(
        self, path: Path, content: str, names: Callable[[dict[str, Any]], Sequence[str]], identity: object = None
    ) -> list[Tensor] | None:
        """The tensors that a file has by `names` of its header; None where there is none, or it is damaged.

        content: what they are, in a word; identity: of the document and the model that the header must name
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                header = header_of(file)
                if header.get("identity") != identity:
                    raise ValueError("it belongs to another document or model")
                tensors = [file.get_tensor(name) for name in names(header)]
            if tensors and checksum(tensors) != header["checksum"]:
                raise ValueError("its checksum differs")
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            self.warn(f"{path}: damaged document {content} ({reason(error)}); it is computed again")
            # A folder that can only be read serves too.
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)
        return tensors

    def trim(self) -> None:
        """Remove the least recently used files beyond the limit, and partial files of killed processes."""
        for path, stat in self.files(SCRATCH):
            if time.time() - stat.st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)
        total = 0
        entries = self.files(SUFFIX)
        for path, stat in sorted(entries, key=lambda entry: entry[1].st_mtime_ns, reverse=True):
            total += stat.st_size
            # The newest was checked against the limit without its header.
            if total > self.capacity_bytes and total > stat.st_size:
                path.unlink(missing_ok=True)

    def files(self, suffix: str) -> list[tuple[Path, os.stat_result]]:
        """The folder's files with a suffix; another process may remove one at any moment."""
        entries = []
        for path in self.folder.glob(f"*{suffix}"):
            with suppress(FileNotFoundError):
                entries.append((path, path.stat()))
        return entries

    def identity(self, loaded: LoadedModel, tokens: Tensor, window: int | None) -> dict[str, str]:
        """Everything that determines the keys and values of a document."""
        if loaded.name not in self.revisions:
            self.revisions[loaded.name] = revision(loaded.model)
        return {
            "format": FORMAT,
            "model": loaded.name,
            "revision": self.revisions[loaded.name],
            "dtype": loaded.dtype,
            "tokenizer": loaded.fingerprint,
            "window": str(window),
            "sinks": str(SINKS),
            "content": token_hash(tokens),
        }

    def path(self, identity: dict[str, str]) -> Path:
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{name[:40]}{SUFFIX}"


def kv_names(layers: int, least: int = 0) -> list[str]:
    """The names of the keys and values of so many layers in a file; none where `least` are needed and these are fewer."""
    return [f"{number}.{part}" for number in range(layers) for part in ("keys", "values")] if layers >= least else []


def header_of(file: Any) -> dict[str, Any]:
    """What `DiskCache.write` says about an open file's tensors."""
    return json.loads((file.metadata() or {})["specprefill"])


def checksum(tensors: Iterable[Tensor]) -> int:
    """The sum of all tensors' bytes as 64-bit words: safetensors notices a truncated file, not a changed one.

    A CRC takes longer than all else that is done with a file of a long document.
    """
    value = 0
    for tensor in tensors:
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        whole = len(data) // WORD_BYTES * WORD_BYTES
        value += int(data[:whole].view(np.uint64).sum()) + int(data[whole:].sum())
    return value % 2**64


def revision(model: PreTrainedModel) -> str:
    """A hash of configuration and weights: other weights may appear under the same name."""
    return hashlib.sha256((model.config.to_json_string() + weights_fingerprint(model)).encode()).hexdigest()


def reason(error: Exception) -> str:
    """The cause of an error in one line."""
    return getattr(error, "strerror", None) or first_line(error)
