"""GGUF files converted once, into folders of the user's cache that load in a second."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specprefill_cli.disk_cache import Entry
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.lora import adapter_hash, read_adapter

FOLDER_VARIABLE = "SPECPREFILL_MODELS"
# Part of a folder's name: raise it when the same file would become other weights or another tokenizer.
VERSION = 2
MANIFEST = "conversion.json"
PARTIAL = ".partial-"
# Percent done once the file is checked, and bytes of a file of weights.
CHECKED, SHARD_BYTES = 5, 2**28
# Bytes of the smallest file that is stored in int8: smaller models decode quickly as they are.
SMALLEST_PACKED = 3 * 10**8
# Called with the percent done, and what is being done.
Step = Callable[[int, str], None]


def models_folder() -> Path:
    """$SPECPREFILL_MODELS, or `models` in the platform's folder for caches."""
    import platformdirs

    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("specprefill")) / "models"


def converted_models() -> list[Entry]:
    """The folders of converted models, by name."""
    folders = [path.parent for path in sorted(models_folder().glob(f"*/{MANIFEST}"))]
    sizes = {folder: sum(path.stat().st_size for path in folder.iterdir()) for folder in folders}
    return [Entry(path.name, size, (path / MANIFEST).stat().st_mtime) for path, size in sizes.items()]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A GGUF file with its adapter, and the folder that they become.

    name: of the model, in messages and in the folder's name; sha256: of the file
    adapter: the folder of an adapter to merge, or None
    packed: whether its matrices are stored in int8
    remedy: what to do about a file with another hash; checked: whether the file is compared with its hash
    """

    name: str
    sha256: str
    adapter: Path | None
    remedy: str
    checked: bool = True
    packed: bool = False

    @cached_property
    def folder(self) -> Path:
        """Where the model is once it is converted."""
        adapter = adapter_hash(self.adapter)[:12] if self.adapter is not None else "plain"
        form = "int8-" if self.packed else ""
        return models_folder() / f"{self.name}-{self.sha256[:12]}-{adapter}-{form}v{VERSION}"

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

    def convert(self, file: Path, step: Step) -> None:
        """Make the folder, unless another process has; it appears whole or not at all.

        Raises SpecprefillError for another or damaged file, and where the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{self.folder}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                step(0, "waiting for another process that converts it")
                lock.acquire()
            try:
                if not self.done:
                    self.replace_folder(file, step)
            finally:
                lock.release()
        except OSError as error:
            raise SpecprefillError(
                f"{self.folder.parent}: the converted model cannot be stored there ({error.strerror or error}); make room, "
                f"or set {FOLDER_VARIABLE} to another folder"
            ) from error

    def replace_folder(self, file: Path, step: Step) -> None:
        """Write the folder under another name, then rename it. Remove what killed processes left."""
        for leftover in self.folder.parent.glob(f"{self.folder.name}{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self.checked:
            step(0, f"checking {file.name}")
            try:
                with file.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                raise SpecprefillError(f"{file}: cannot be read ({error.strerror or error}); {self.remedy}") from error
            if digest != self.sha256:
                hashes = f"SHA-256 {digest[:12]}..., not {self.sha256[:12]}..."
                raise SpecprefillError(f"{file}: damaged, or another file ({hashes}); {self.remedy}")
        scratch = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix=f"{self.folder.name}{PARTIAL}"))
        try:
            write_model(file, scratch, self.adapter, self.packed, step)
            sizes = {path.name: path.stat().st_size for path in scratch.iterdir()}
            (scratch / MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
            shutil.rmtree(self.folder, ignore_errors=True)
            scratch.rename(self.folder)
        finally:
            with suppress(OSError):
                shutil.rmtree(scratch)


def file_conversion(file: Path, packed: bool) -> Conversion:
    """The conversion of a user's file. Path, size and time identify the file: hashing a large file takes long."""
    status = file.stat()
    packed = packed and status.st_size >= SMALLEST_PACKED
    stamp = hashlib.sha256(os.fsencode(file.resolve()) + f" {status.st_size} {status.st_mtime_ns}".encode())
    return Conversion(
        name=file.stem[:60], sha256=stamp.hexdigest(), adapter=None, remedy="", checked=False, packed=packed
    )


def write_model(file: Path, folder: Path, adapter: Path | None, packed: bool, step: Step) -> None:
    """Write the model of a GGUF file as transformers stores it, an adapter merged.

    packed: store matrices in int8 (`quantization.load_packed` reads them) instead of bfloat16

    Raises SpecprefillError for a file or adapter that cannot be converted, OSError where the folder cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from specprefill_cli.models.gguf import configuration, read_gguf
    from specprefill_cli.models.gguf_tokenizer import build_tokenizer, tokenizer_config
    from specprefill_cli.models.gguf_weights import named_tensors, shards, stored_tensors
    from specprefill_cli.models.quantization import STORED

    step(CHECKED, f"reading {file.name}")
    reader = read_gguf(file)
    config, lora = configuration(reader), read_adapter(adapter, str(adapter)) if adapter is not None else None
    named = named_tensors(reader, config)
    if lora is not None:
        lora.check_modules({tensor.module for tensor in named})
    build_tokenizer(reader).save(str(folder / "tokenizer.json"))
    settings = config | {"quantization_config": STORED} if packed else config
    for name, content in (("config.json", settings), ("tokenizer_config.json", tokenizer_config(reader))):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    count = sum(tensor.count for tensor in named)
    free, size = shutil.disk_usage(folder).free, count * (1 if packed else 2)
    if size > free:
        raise OSError(errno.ENOSPC, f"{size / 2**20:.0f} MiB are needed, and {free / 2**20:.0f} are free")

    def report(done: int) -> None:
        step(CHECKED + (100 - CHECKED) * done // count, "unpacking the weights")

    places: dict[str, str] = {}
    try:
        for number, shard in enumerate(shards(stored_tensors(named, packed, lora, report), SHARD_BYTES)):
            name = f"model-{number:05}.safetensors"
            save_file(shard, folder / name, metadata={"format": "pt"})
            places |= dict.fromkeys(shard, name)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
