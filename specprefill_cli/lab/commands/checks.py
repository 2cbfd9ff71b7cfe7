"""What commands of the lab refuse before they load anything."""

from __future__ import annotations

import os
from pathlib import Path

from specprefill_cli.distributed.launch import in_run
from specprefill_cli.errors import UsageError


def refuse_ranks(tensor_parallel: int, work: str) -> None:
    """Raise UsageError for work that is done in one process only."""
    if in_run() or tensor_parallel > 1:
        raise UsageError(
            f"{work} runs in one process; call it without torchrun, and with SPECPREFILL_TENSOR_PARALLEL=1"
        )


def make_folder(path: Path, option: str) -> None:
    """Create a folder. Raises UsageError for one that cannot be created, or cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} {path}: cannot be made ({reason}); give another folder") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path}: no permission to write there; give another folder")
