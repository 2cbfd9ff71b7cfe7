"""Steps of the check: each runs in its own process with a time limit, so that none can end the others."""

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

# Characters of a step's output kept in its result; the log files have all of it.
KEPT_OUTPUT = 3_000
# Every step gets at least this much of the remaining time: loading libraries alone can take this long.
LEAST_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """A run of this Python interpreter with `arguments`.

    share: weight in dividing the remaining time among this step and the later steps
    missing: why it cannot run; empty if it can
    """

    name: str
    arguments: tuple[str, ...]
    share: float
    missing: str = ""


def run_steps(
    steps: Sequence[Step], logs: Path, seconds: float, on_result: Callable[[Sequence[Row]], None]
) -> list[Row]:
    """Run the steps in order, even if some fail; later steps get the time that a step leaves unused.

    logs: a folder for the steps' output; seconds: for all steps; on_result: called with all results after each step
    """
    results: list[Row] = []
    end = time.monotonic() + seconds
    for number, step in enumerate(steps):
        shares = sum(later.share for later in steps[number:])
        seconds_left = end - time.monotonic()
        limit = min(seconds_left, max(LEAST_SECONDS, seconds_left * step.share / shares))
        results.append(run_step(step if seconds_left > 0 else replace(step, missing="no time left"), logs, limit))
        on_result(results)
    return results


def run_step(step: Step, logs: Path, limit: float) -> Row:
    """Run a step for at most `limit` seconds; write its output to two files named after it.

    state: `ok`, or in words how it failed or why it was skipped; rows: the figures that it printed as JSON
    output: the end of its other output; seconds: the time that it took, of `limit_seconds`
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
    printed, logged = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
    rows = rows_in(printed)
    return result | {"rows": rows, "output": (logged if rows else printed + logged)[-KEPT_OUTPUT:].strip()}


def run_process(command: Sequence[str], limit: float, **streams: Any) -> str:
    """Run a command and its child processes for at most `limit` seconds; return `ok`, or how it ended."""
    # The user's own settings must not affect the measurement.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECPREFILL_")}
    environment["SPECPREFILL_CONFIG"] = os.devnull
    # Start a new session, so that its child processes can be ended with it.
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
    """Kill a process that still runs, with its whole session where the system supports sessions."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def rows_in(printed: str) -> list[Row]:
    """The rows of the JSON object in a step's last line; empty if that line is something else."""
    try:
        return json.loads(printed.strip().splitlines()[-1])["rows"]
    except (ValueError, LookupError, TypeError):
        return []
