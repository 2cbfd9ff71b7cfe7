"""GGUF files converted once, into folders of the user's cache that load in a second."""

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.caches import Entry
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import own_path
from specprefill_cli.models.sources.lora import read_adapter

if TYPE_CHECKING:
    from torch import Tensor

FOLDER_VARIABLE = "SPECPREFILL_MODELS"
# Part of a folder's name: raise it when a file or the bundled adapter would give another model.
VERSION = 4
MANIFEST = "conversion.json"
PARTIAL = ".partial-"
# Bytes of a file of weights.
SHARD_BYTES = 2**28
# Bytes of the smallest file that is stored in int8: smaller models decode quickly as they are.
SMALLEST_PACKED = 3 * 10**8
# Called with the percent done, and what is being done.
Step = Callable[[int, str], None]


def models_folder() -> Path:
    """$SPECPREFILL_MODELS, or `models` in the platform's folder for caches."""
    return own_path(FOLDER_VARIABLE, "cache", "models")


def converted_models() -> list[Entry]:
    """The folders of converted models, by name."""
    folders = [path.parent for path in sorted(models_folder().glob(f"*/{MANIFEST}"))]
    sizes = {folder: sum(path.stat().st_size for path in folder.iterdir()) for folder in folders}
    return [Entry(path.name, size, (path / MANIFEST).stat().st_mtime) for path, size in sizes.items()]


@dataclass(frozen=True)
class Conversion:
    """A GGUF file, stamped with a hash of what identifies it, and the folder that it becomes.

    packed: whether its matrices are stored in int8; adapter: the folder of an adapter to merge, or None
    """

    file: Path
    stamp: str
    packed: bool = False
    adapter: Path | None = None

    @classmethod
    def of(cls, file: Path, packed: bool, adapter: Path | None = None) -> "Conversion":
        """The conversion of a file. Path, size and time identify it: hashing a large file takes long."""
        status = file.stat()
        stamp = hashlib.sha256(os.fsencode(file.resolve()) + f" {status.st_size} {status.st_mtime_ns}".encode())
        return cls(file, stamp.hexdigest(), packed and status.st_size >= SMALLEST_PACKED, adapter)

    @cached_property
    def folder(self) -> Path:
        """Where the model is once it is converted."""
        form = f"{'adapted' if self.adapter else 'plain'}{'-int8' if self.packed else ''}"
        return models_folder() / f"{self.file.stem[:60]}-{self.stamp[:12]}-{form}-v{VERSION}"

    @property
    def done(self) -> bool:
        """Whether the folder is there with all its files, none of them cut short."""
        try:
            sizes = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            is_whole = all((self.folder / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError, AttributeError):
            return False
        # For `specprefill cache`: the time of the last use.
        with suppress(OSError):
            os.utime(self.folder / MANIFEST)
        return is_whole

    def convert(self, step: Step) -> None:
        """Make the folder where it is missing, whole or not at all. Raises SpecprefillError where that fails."""
        if self.done:
            return
        from filelock import FileLock

        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            # Another process may be converting it.
            with FileLock(f"{self.folder}.lock"):
                if not self.done:
                    self.replace_folder(step)
        except OSError as error:
            raise SpecprefillError(
                f"{self.folder.parent}: the converted model cannot be stored there ({error.strerror or error}); make room, "
                f"or set {FOLDER_VARIABLE} to another folder"
            ) from error

    def replace_folder(self, step: Step) -> None:
        """Write the folder under another name, then rename it. Remove what killed processes left."""
        for leftover in self.folder.parent.glob(f"{self.folder.name}{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix=f"{self.folder.name}{PARTIAL}"))
        try:
            write_model(self.file, scratch, self.adapter, self.packed, step)
            sizes = {path.name: path.stat().st_size for path in scratch.iterdir()}
            (scratch / MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
            shutil.rmtree(self.folder, ignore_errors=True)
            scratch.rename(self.folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def write_model(file: Path, folder: Path, adapter: Path | None, packed: bool, step: Step) -> None:
    """Write a GGUF file as transformers stores it, in bfloat16 or `packed` in int8 and 4 bits, an adapter merged.

    Raises SpecprefillError for a file or adapter that cannot be converted, OSError where the folder cannot be written.
    """
    from safetensors import SafetensorError

    from specprefill_cli.models.running.int8 import STORED
    from specprefill_cli.models.sources.gguf import configuration, read_gguf
    from specprefill_cli.models.sources.gguf_tokenizer import build_tokenizer, tokenizer_config
    from specprefill_cli.models.sources.gguf_weights import named_tensors, shards, stored_tensors

    step(0, f"reading {file.name}")
    reader = read_gguf(file)
    config, lora = configuration(reader), read_adapter(adapter, str(adapter)) if adapter is not None else None
    named = named_tensors(reader, config)
    if lora is not None:
        lora.check_modules({tensor.module for tensor in named})
    build_tokenizer(reader).save(str(folder / "tokenizer.json"))
    sizes = ((part.count, part.stored_bytes(packed)) for part in named)
    count, size = (sum(amounts) for amounts in zip(*sizes, strict=True))
    stored = {"quantization_config": STORED | {"bits": math.ceil(8 * size / count)}} if packed else {}
    for name, content in (("config.json", config | stored), ("tokenizer_config.json", tokenizer_config(reader))):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(errno.ENOSPC, f"{size / 2**20:.0f} MiB are needed, and {free / 2**20:.0f} are free")

    places: dict[str, str] = {}
    try:
        for number, shard in enumerate(shards(stored_tensors(named, packed, lora, step), SHARD_BYTES)):
            name = f"model-{number:05}.safetensors"
            save_aligned(shard, folder / name)
            places |= dict.fromkeys(shard, name)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def save_aligned(tensors: dict[str, "Tensor"], path: Path) -> None:
    """Save tensors so that the first begins at a multiple of `ALIGNMENT`: the format itself only promises 8 bytes."""
    from safetensors.torch import save_file

    from specprefill_cli.models.running.int8 import ALIGNMENT

    for filler in ("", " " * 8):
        save_file(tensors, path, metadata={"format": "pt", "filler": filler})
        with path.open("rb") as file:
            if (int.from_bytes(file.read(8), "little") + 8) % ALIGNMENT == 0:
                return
