"""The process: how it imports torch and transformers, its memory, and its idle threads."""

import gc
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from specprefill_cli.distributed.launch import in_run

# What `import_transformers` leaves out: torch's compiler, and decorators for it.
COMPILER = "torch._dynamo"
DECORATORS = frozenset({"allow_in_graph", "assume_constant_result", "disable"})
KIBIBYTE = 1_024
# Options of glibc's mallopt(3). It takes blocks above LARGEST_KEPT, its own upper limit, from the system each time.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT, MOST_KEPT = 32 * 2**20, 512 * 2**20
# How long an idle thread spins before it sleeps: libgomp counts loops (some 0.1 ms), LLVM's OpenMP milliseconds.
BOUNDED_SPIN = {"GOMP_SPINCOUNT": "4000", "KMP_BLOCKTIME": "1"}
# Where a user has set any of these, spinning stays as it is.
WAIT_SETTINGS = ("OMP_WAIT_POLICY", *BOUNDED_SPIN)


def peak_memory_bytes() -> int:
    """The peak memory of this process since it started, in bytes: on its GPUs where torch uses any."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
    try:
        import resource
    except ImportError:
        import psutil

        return psutil.Process().memory_info().peak_wset
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else KIBIBYTE * peak


def reuse_freed_memory() -> None:
    """Let glibc keep freed memory for the next tensors: that saves 12 % of TTFT at 4,000 tokens on a CPU."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Let idle OpenMP threads spin only briefly, because spinning takes the cores from other programs.

    Sleeping at once would cost over 10 % of TTFT. Call it before torch is imported.
    """
    if not any(name in environment for name in WAIT_SETTINGS):
        environment.update(BOUNDED_SPIN)


def import_transformers(tensor_parallel: int) -> None:
    """Import torch and transformers without torch's compiler; nothing happens if transformers is already imported.

    tensor_parallel: processes that share the target; for a single one transformers is told that torch.distributed is missing
    """
    if "transformers" in sys.modules:
        return
    # Modules stay, and every collection would traverse all that they define.
    gc.disable()
    try:
        import torch
        import transformers
        from transformers.utils.import_utils import is_torch_distributed_available

        if tensor_parallel == 1 and not in_run():
            # transformers asks once and remembers the answer.
            with replaced(vars(torch.distributed), "is_available", lambda: False):
                is_torch_distributed_available()
        with read_folders_once(Path(transformers.__file__).parent / "models"):
            import transformers.models
        with nullcontext() if COMPILER in sys.modules else without_compiler():
            import torch.nn.attention.bias
            import transformers.generation.utils
            import transformers.modeling_utils
    finally:
        gc.freeze()
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
        if sys.modules[COMPILER] is stand_in:
            del sys.modules[COMPILER], vars(torch)["_dynamo"]


def undecorated(name: str) -> Any:
    """A decorator that does nothing, with or without arguments; anything else comes from the real compiler."""
    if name in DECORATORS:
        return lambda function=None, *_, **__: function or (lambda decorated: decorated)
    if name.startswith("__"):
        raise AttributeError(name)
    sys.modules.pop(COMPILER)
    return getattr(import_module(COMPILER), name)


@contextmanager
def replaced(namespace: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Replace a name of a module for a while."""
    original, namespace[name] = namespace[name], value
    try:
        yield
    finally:
        namespace[name] = original


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

    with replaced(vars(import_utils), "define_import_structure", define_once):
        yield
