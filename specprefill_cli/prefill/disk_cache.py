"""Entries of the document cache on disk: safetensors files, written whole, bounded in size, checked before use."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from specprefill_cli.errors import UsageError, first_line

# Part of every file's name, so that a file of another format is never read.
SUFFIX = ".4.specprefill.safetensors"


@dataclass
class DiskCache:
    """Tensors by key in a folder; the least recently used files are removed. Several processes may share it.

    capacity_bytes: of all files together
    warn: called with a line for every file that cannot be used or written; its content is then computed again

    Raises UsageError when the folder cannot be made.
    """

    folder: Path
    capacity_bytes: int
    warn: Callable[[str], None]
    unsaved: dict[str, Mapping[str, Tensor]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--cache-dir {self.folder}: cannot be made ({error.strerror}); give another") from error

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}{SUFFIX}"

    def holds(self, key: str) -> bool:
        """Whether a key has a file; only `load` checks that it is whole."""
        return self.path(key).exists()

    def save_later(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Save with the next `write`: the first token of an answer does not wait for the disk."""
        self.unsaved[key] = tensors

    def write(self) -> None:
        """Save the entries of `save_later`."""
        while self.unsaved:
            self.save(*self.unsaved.popitem())

    def load(self, key: str) -> dict[str, Tensor] | None:
        """The tensors of a key by name; None where there are none, or their file is damaged."""
        from safetensors import SafetensorError, safe_open

        path = self.path(key)
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                stored = (file.metadata() or {}).get("checksum")
            if checksum(tensors) != stored:
                raise ValueError("its checksum differs")
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            self.warn(f"{path}: damaged document state ({first_line(error)}); it is computed again")
            return None
        # A read-only folder serves too.
        with suppress(OSError):
            os.utime(path)
        return tensors

    def save(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a file whole, then trim the folder; warn where that fails."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        copies = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        size = sum(tensor.nbytes for tensor in copies.values())
        if size > self.capacity_bytes:
            self.warn(f"{self.folder}: a document state of {size / 2**30:.1f} GiB exceeds --cache-limit; not stored")
            return
        try:
            # `trim` also removes the file of a killed process, like any other that is no longer used.
            handle, scratch = tempfile.mkstemp(dir=self.folder, suffix=SUFFIX)
            os.close(handle)
            try:
                save_file(copies, scratch, metadata={"checksum": checksum(copies)})
                os.replace(scratch, self.path(key))
            finally:
                Path(scratch).unlink(missing_ok=True)
            self.trim()
        except (OSError, SafetensorError) as error:
            self.warn(f"{self.folder}: document state not stored ({first_line(error)})")

    def trim(self) -> None:
        """Remove the least recently used files beyond the limit."""
        files: list[tuple[int, int, Path]] = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            # Another process may remove a file at any moment.
            with suppress(FileNotFoundError):
                files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        total = 0
        for _, size, path in sorted(files, reverse=True):
            total += size
            # `save` checked the newest file against the limit, without its header.
            if total > max(self.capacity_bytes, size):
                path.unlink(missing_ok=True)


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """The sum of all tensors' bytes as 64-bit words, and their names: safetensors notices truncation, not changed bytes."""
    return f"{sum(int(tensor.view(torch.int64).sum()) for tensor in tensors.values())} {sorted(tensors)}"
