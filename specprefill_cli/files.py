"""Files written whole or not at all, and those that ship with specprefill."""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any
from uuid import uuid4

from specprefill_cli.errors import SpecprefillError, UsageError

# Stands for standard input in a list of documents or files.
STANDARD_INPUT = "-"


def check_can_write(path: Path, option: str) -> None:
    """Raise UsageError for a path that cannot be written; called before any work is done."""
    if path == Path("-"):
        raise UsageError(f"{option} -: this cannot be standard output; give a file name")
    if os.path.isdir(path):
        raise UsageError(f"{option} {path}: this is a folder; give a file name")
    # Unlike pathlib, os.path does not raise for a folder without search permission.
    if not os.path.isdir(path.parent):
        raise UsageError(f"{option} {path}: the folder {path.parent} does not exist; create it first")
    # A new file in the same folder replaces the old file, so the folder must be writable too.
    places_to_write = [path] if os.path.exists(path) else []
    if not is_device(path):
        places_to_write.append(Path(os.path.realpath(path)).parent)
    if not all(os.access(place, os.W_OK) for place in places_to_write):
        raise UsageError(f"{option} {path}: no permission to write there; give another place")


def only_read_here(name: str) -> bool:
    """Whether only this process can read a document: from standard input, a pipe or another of its open files."""
    return name == STANDARD_INPUT or name.startswith(("/dev/fd/", "/dev/stdin", "/proc/self/")) or is_device(Path(name))


def same_file(path: Path, other: Path) -> bool:
    """Whether two paths lead to the same existing file."""
    return os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other)


def read_toml(path: Path, place: str) -> dict[str, Any]:
    """The entries of a TOML file. Raises UsageError, beginning with `place`, for a faulty file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{place}: not valid TOML ({error}); fix or remove the file") from error
    except OSError as error:
        raise UsageError(f"{place}: cannot be read ({error.strerror or error}); check its permissions") from error


def is_device(path: Path) -> bool:
    """Whether a path exists and is neither a regular file nor a folder: a device or a pipe, such as /dev/stdout."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically, through links; a device or pipe is not replaced. Raises SpecprefillError."""
    content = content.encode() if isinstance(content, str) else content
    try:
        # Check this before resolving links: the pipe behind a link has no name.
        if is_device(path):
            path.write_bytes(content)
            return
        path = Path(os.path.realpath(path))
        scratch = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
        try:
            with scratch.open("xb") as stream:
                if path.exists():
                    shutil.copymode(path, scratch)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise SpecprefillError(f"{path}: cannot be written ({error.strerror or error}); give another place") from error


_PACKAGE = Path(__file__).resolve().parent
# The pair that ships with the package, and its calibration.
BUNDLED_FOLDER = _PACKAGE / "bundled" / "tiny"
# The adapter of the pair `smollm2`, and its calibration.
SMOLLM2_FOLDER = _PACKAGE / "bundled" / "smollm2"
# The sentence encoder that ships with the package.
ENCODER_FOLDER = _PACKAGE / "bundled" / "encoder"
MULTILINGUAL_FOLDER = _PACKAGE / "bundled" / "multilingual"


def own_path(variable: str, kind: str, name: str = "") -> Path:
    """The path in an environment variable, or `name` in the platform's folder of a kind: `cache`, `config` or `data`."""
    import platformdirs

    if chosen := os.environ.get(variable):
        return Path(os.path.expanduser(chosen))
    return Path(getattr(platformdirs, f"user_{kind}_dir")("specprefill"), name)


def packaged_file(package: str, ending: str) -> Path | None:
    """The file of another installed package whose name ends so, or None. The package, which may need others, is not imported."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        return None
    places = (Path(str(file.locate())) for file in files if file.name.endswith(ending))
    return next((place for place in places if place.is_file()), None)


def packaged_folder(name: str) -> Path:
    """Return the folder `name` that ships with specprefill. Raises SpecprefillError for an incomplete installation."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    problem = f"{_PACKAGE}: the folder '{name}' is missing from this installation; install specprefill again"
    raise SpecprefillError(problem)
