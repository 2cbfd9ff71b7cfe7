"""Import torch and transformers without what a run does not need: a third less time before the first word."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from specprefill_cli.distributed.launch import in_run

COMPILER = "torch._dynamo"


def import_transformers(tensor_parallel: int) -> None:
    """Import torch and transformers; nothing happens if transformers is already imported.

    tensor_parallel: processes that share the target; transformers leaves torch.distributed out for a single one
    """
    if "transformers" in sys.modules:
        return
    enabled = gc.isenabled()
    # Modules stay, and every collection would traverse all that they define.
    gc.disable()
    try:
        import torch
        import transformers
        from transformers.utils.import_utils import is_torch_distributed_available

        distributed = torch.distributed
        if tensor_parallel == 1 and not in_run():
            # transformers asks once and remembers the answer.
            distributed.is_available, is_available = (lambda: False), distributed.is_available
            is_torch_distributed_available()
            distributed.is_available = is_available
        with read_folders_once(Path(transformers.__file__).parent / "models"):
            import transformers.models
        with without_compiler():
            import torch.nn.attention.bias
            import transformers.generation.utils
            import transformers.modeling_utils
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let decorators for torch.compile, which nothing here uses, return their function; torch imports the compiler later."""
    import torch

    stand_in = ModuleType(COMPILER)
    vars(stand_in).update(__path__=[str(Path(torch.__file__).parent / "_dynamo")], __getattr__=undecorated)
    sys.modules[COMPILER] = vars(torch)["_dynamo"] = stand_in
    try:
        yield
    finally:
        del sys.modules[COMPILER], vars(torch)["_dynamo"]


def undecorated(name: str) -> Callable[..., Any]:
    """A decorator that does nothing, with or without arguments, for any public name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda function=None, *_, **__: function or (lambda decorated: decorated)


@contextmanager
def read_folders_once(folder: Path) -> Iterator[None]:
    """Give `transformers.models` the list of its modules.

    transformers has just read every file for it, and would read them again, because its cache holds too few folders.
    """
    from transformers.utils import import_utils

    define = import_utils.define_import_structure
    listed = {
        backends: {name.removeprefix("models."): names for name, names in modules.items() if name.startswith("models.")}
        for backends, modules in define(folder, prefix="models").items()
    }

    def define_once(path: str, prefix: str | None = None) -> Any:
        return listed if Path(path).parent == folder and prefix is None else define(path, prefix)

    names = vars(import_utils)
    names["define_import_structure"] = define_once
    try:
        yield
    finally:
        names["define_import_structure"] = define
