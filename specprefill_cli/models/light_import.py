"""Imports torch and transformers without work that they repeat."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def import_transformers() -> None:
    """Import torch and transformers; nothing happens where transformers is there already."""
    if "transformers" in sys.modules:
        return
    with collection_paused():
        import transformers

        with folders_read_once(Path(transformers.__file__).parent / "models"):
            import transformers.models
        import transformers.modeling_utils


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection: modules stay, and every collection would go through all that they have defined."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def folders_read_once(folder: Path) -> Iterator[None]:
    """Give `transformers.models` the list of its modules, for which transformers has just read every file.

    transformers would read them again, because its cache holds fewer folders than there are.
    """
    from transformers.utils import import_utils

    define = import_utils.define_import_structure
    listed = {
        backends: {name.removeprefix("models."): names for name, names in modules.items() if name.startswith("models.")}
        for backends, modules in define(folder, prefix="models").items()
    }

    def known(path: str, prefix: str | None = None) -> Any:
        return listed if Path(path).parent == folder and prefix is None else define(path, prefix)

    names = vars(import_utils)
    names["define_import_structure"] = known
    try:
        yield
    finally:
        names["define_import_structure"] = define
