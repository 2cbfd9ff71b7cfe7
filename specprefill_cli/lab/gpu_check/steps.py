"""Steps of the check: each is a process of its own with a time limit, so that none can end the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specprefill_cli.lab.tables import Row

# Characters of a step's output that its result keeps; all of it is in the log files.
KEPT_OUTPUT = 3_000
# What every step may take while any time is left: loading libraries alone can take this long.
LEAST_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A run of this Python with `arguments`.

    share: of the time that is left, in proportion to the shares of the steps behind it
    missing: why it cannot run; empty where it can
    """

    name: str
    arguments: tuple[str, ...]
    share: float
    missing: str = ""


def run_steps(
    steps: Sequence[Step], logs: Path, seconds: float, on_result: Callable[[Sequence[Row]], None]
) -> list[Row]:
    """Run the steps in order, whatever becomes of each; what a step leaves of its time is the later ones'.

    logs: a folder for the steps' output; seconds: for all steps; on_result: called with all results after each step
    """
    results: list[Row] = []
    end = time.monotonic() + seconds
    for number, step in enumerate(steps):
        shares = sum(later.share for later in steps[number:])
        left = end - time.monotonic()
        limit = min(left, max(LEAST_SECONDS, left * step.share / shares))
        results.append(run_step(step if left > 0 else replace(step, missing="no time left"), logs, limit))
        on_result(results)
    return results


def run_step(step: Step, logs: Path, limit: float) -> Row:
    """Run one step for at most `limit` seconds; its output goes to two files named after it.

    state: `ok`, or in words how it failed or why it was skipped; rows: the figures that it printed as JSON
    output: the end of everything else; seconds: that it took, of `limit_seconds`
    """
    result: Row = {"name": step.name, "arguments": step.arguments, "state": f"skipped: {step.missing}"}
    if step.missing:
        return result | {"seconds": 0.0, "limit_seconds": 0.0, "rows": [], "output": ""}
    slug = step.name.replace(" ", "-")
    out, err = logs / f"{slug}.out", logs / f"{slug}.err"
    started = time.monotonic()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        result["state"] = run_process([sys.executable, *step.arguments], limit, stdout=stdout, stderr=stderr)
    result |= {"seconds": time.monotonic() - started, "limit_seconds": limit}
    printed, told = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    rows = rows_in(printed)
    return result | {"rows": rows, "output": (told if rows else printed + told)[-KEPT_OUTPUT:].strip()}


def run_process(command: Sequence[str], limit: float, **streams: Any) -> str:
    """Run a command and what it starts for at most `limit` seconds; return `ok`, or how it ended."""
    # The user's own settings must not change what is measured.
    environment = {**os.environ, "SPECPREFILL_CONFIG": os.devnull}
    # A session of its own, so that everything it started can be ended with it.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True, **streams)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:,.0f} s"
    finally:
        end_process(process)
    if code < 0:
        return f"failed: {signal.Signals(-code).name}"
    return "ok" if code == 0 else f"failed: exit code {code}"


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, with its session where the system has them."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def rows_in(printed: str) -> list[Row]:
    """The rows of the JSON object in a step's last line; none where that is something else."""
    try:
        return json.loads(printed.strip().splitlines()[-1])["rows"]
    except (ValueError, LookupError, TypeError):
        return []
