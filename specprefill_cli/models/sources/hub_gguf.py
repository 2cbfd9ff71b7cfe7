"""GGUF files on the hub, named as llama.cpp and Ollama name them: a repository, and a quantisation after a colon."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quantization>\w+))?", re.ASCII)
# The number of a part in the name of a file that is one of several.
PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


def is_gguf_name(name: str) -> bool:
    """Whether a name stands for a GGUF file on the hub: it states a quantisation, or its repository ends with GGUF."""
    match = NAME.fullmatch(name)
    return match is not None and (match["quantization"] is not None or match["repo"].lower().endswith("-gguf"))


def split_name(name: str) -> tuple[str, str]:
    """Repository and quantisation of a name."""
    repo, _, quantization = name.partition(":")
    return repo, quantization or "Q4_K_M"


def matching_files(name: str, files: Iterable[str]) -> list[str]:
    """The files of a repository that hold the quantisation: one, or all parts of one in order; empty where none does."""
    ending = re.compile(rf"(?:^|[-._/]){split_name(name)[1]}\.gguf$", re.IGNORECASE)
    # A projector of pictures may have the same quantisation, and a file may be there whole as well as in parts.
    found = [file for file in files if ending.search(PART.sub("", file)) and "mmproj" not in file.lower()]
    alike = [file for file in found if PART.sub("", file) == PART.sub("", min(found))]
    return sorted(file for file in alike if (PART.search(file) is None) == (PART.search(min(alike)) is None))


def cached_file(name: str) -> Path | None:
    """The file in the hub's cache, the first part of several; None where it is not complete there."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{split_name(name)[0].replace('/', '--')}" / "snapshots"
    for snapshot in sorted(folder.glob("*"), key=lambda place: place.stat().st_mtime, reverse=True):
        files = {str(PurePosixPath(file.relative_to(snapshot))): file for file in snapshot.rglob("*.gguf")}
        chosen = matching_files(name, (file for file, place in files.items() if place.is_file()))
        part = PART.search(chosen[0]) if chosen else None
        if chosen and len(chosen) == (int(part[2]) if part else 1):
            return files[chosen[0]]
    return None
