"""Tensors on disk by key: safetensors files, written whole, bounded in size, checked before use."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.errors import UsageError, first_line
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.prefill.calibration import weights_fingerprint

# Part of every file's name, so that a file of another format is never read.
SUFFIX = ".3.specprefill.safetensors"
WORD_BYTES = 8


@dataclass
class DiskCache:
    """Documents' keys and values, and their embeddings, in a folder; the least recently used are removed.

    capacity_bytes: of all files together
    warn: called with one line for every file that cannot be used or written; what it held is then computed again

    Raises UsageError when the folder cannot be made.
    """

    folder: Path
    capacity_bytes: int
    warn: Callable[[str], None]
    revisions: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--cache-dir {self.folder}: cannot be made ({error.strerror}); give another") from error

    def holds(self, key: str) -> bool:
        """Whether there is a file of a key; whether it is whole, `load` sees."""
        return self.path(key).exists()

    def load(self, key: str) -> dict[str, Tensor] | None:
        """The tensors of a key by name; None where there are none, or their file is damaged."""
        from safetensors import SafetensorError, safe_open

        path = self.path(key)
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                stored = (file.metadata() or {}).get("checksum")
            if checksum(tensors.values()) != stored:
                raise ValueError("its checksum differs")
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            self.warn(f"{path}: damaged document state ({first_line(error)}); it is computed again")
            return None
        # A folder that can only be read serves too.
        with suppress(OSError):
            os.utime(path)
        return tensors

    def save(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a file whole, then remove what exceeds the limit; a warning where that fails."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        own = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        size = sum(tensor.nbytes for tensor in own.values())
        if size > self.capacity_bytes:
            self.warn(f"{self.folder}: a document state of {size / 2**30:.1f} GiB exceeds --cache-limit; not stored")
            return
        try:
            # A killed process leaves a file that is removed like any other that is no longer used.
            handle, scratch = tempfile.mkstemp(dir=self.folder, suffix=SUFFIX)
            os.close(handle)
            try:
                save_file(own, scratch, metadata={"checksum": checksum(own.values())})
                os.replace(scratch, self.path(key))
            finally:
                Path(scratch).unlink(missing_ok=True)
            self.trim()
        except (OSError, SafetensorError) as error:
            self.warn(f"{self.folder}: document state not stored ({first_line(error)})")

    def trim(self) -> None:
        """Remove the least recently used files beyond the limit."""
        entries: list[tuple[Path, os.stat_result]] = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            # Another process may remove a file at any moment.
            with suppress(FileNotFoundError):
                entries.append((path, path.stat()))
        total = 0
        for path, stat in sorted(entries, key=lambda entry: entry[1].st_mtime_ns, reverse=True):
            total += stat.st_size
            # The newest was checked against the limit without its header.
            if total > self.capacity_bytes and total > stat.st_size:
                path.unlink(missing_ok=True)

    def revision(self, loaded: LoadedModel) -> str:
        """A hash of tokenizer, configuration and weights: others may appear under the same name."""
        if loaded.name not in self.revisions:
            parts = (loaded.fingerprint, loaded.model.config.to_json_string(), weights_fingerprint(loaded.model))
            self.revisions[loaded.name] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return self.revisions[loaded.name]

    def path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}{SUFFIX}"


def checksum(tensors: Iterable[Tensor]) -> str:
    """The sum of all tensors' bytes as 64-bit words: safetensors notices a truncated file, not a changed one.

    A CRC takes longer than all else that is done with a file of a long document.
    """
    value = 0
    for tensor in tensors:
        data = tensor.view(-1).view(torch.uint8).numpy()
        whole = len(data) // WORD_BYTES * WORD_BYTES
        value += int(data[:whole].view(np.uint64).sum()) + int(data[whole:].sum())
    return str(value % 2**64)
