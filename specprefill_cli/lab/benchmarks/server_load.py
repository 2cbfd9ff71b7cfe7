"""Load on a running server: clients that ask the sample questions over its Unix socket, one after the other.

Each client begins with another question.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.tables import Columns, Row, figure, memory
from specprefill_cli.resources import packaged_folder
from specprefill_cli.serving.control import server_state
from specprefill_cli.serving.listening import HTTP_SOCKET, runtime_folder

# Seconds between two looks at the server's memory.
MEMORY_INTERVAL = 1.0
COLUMNS: Columns = {
    "clients": figure("clients", ",d"),
    "seconds": figure("seconds", "g"),
    "answers": figure("answers", ",d"),
    "answers/s": figure("rate", ".2f"),
    "errors": figure("errors", ",d"),
    "TTFT median": figure("ttft_median", ".2f"),
    "99 %": figure("ttft_p99", ".2f"),
    "same answer": lambda row: f"{row['same_answer']} of {row['questions']}",
    "memory": memory("memory_early_bytes"),
    "at the end": memory("memory_late_bytes"),
}


@dataclass
class Load:
    """What clients have seen.

    ttfts: seconds from a request to its first piece; answers: all that a question has had
    memory: resident bytes of the largest of the server's processes, over time; seconds: until the last answer
    """

    ttfts: list[float] = field(default_factory=list)
    answers: dict[int, set[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    seconds: float = 0.0


def sample_questions() -> list[dict[str, Any]]:
    """The bodies of the sample questions, whose documents are named by path."""
    folder = packaged_folder("sample_docs").resolve()
    rows = map(json.loads, (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        {
            "question": row["question"],
            "documents": [{"path": str(folder / name)} for name in row["documents"]],
            "stream": True,
            "max_new_tokens": 32,
        }
        for row in rows
    ]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[float, str]:
    """The seconds to the first event of an answer, and its text. Raises OSError or ValueError for an error."""
    began, first, name, text = time.perf_counter(), None, "", ""
    async with client.stream("POST", "/v1/ask", json=body) as response:
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            first = time.perf_counter() if first is None else first
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line and name == "answer":
                text = json.loads(line.removeprefix("data: "))["answer"]
    if first is None or name != "answer":
        raise ValueError(f"the stream ended with '{name}'")
    return first - began, text


async def run_client(number: int, deadline: float, bodies: list[dict[str, Any]], load: Load) -> None:
    """Ask until the deadline, on the clock of `time.perf_counter`."""
    async with server_client() as client:
        question = number
        while time.perf_counter() < deadline:
            index = question % len(bodies)
            question += 1
            try:
                ttft, text = await ask(client, bodies[index])
            except (httpx.HTTPError, OSError, ValueError) as error:
                load.errors.append(f"{type(error).__name__}: {error}")
                continue
            load.ttfts.append(ttft)
            load.answers.setdefault(index, set()).add(text)


async def watch_memory(process: int, load: Load) -> None:
    """Note the memory of the server and its engine again and again."""
    server = psutil.Process(process)
    while True:
        # A process may end between two looks.
        with suppress(psutil.NoSuchProcess):
            load.memory.append(max(member.memory_info().rss for member in (server, *server.children())))
        await asyncio.sleep(MEMORY_INTERVAL)


def server_client() -> httpx.AsyncClient:
    """A client of the running server's Unix socket."""
    transport = httpx.AsyncHTTPTransport(uds=str(Path(runtime_folder()) / HTTP_SOCKET))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None)


async def measure(clients: int, seconds: float, process: int) -> Load:
    """Ask with so many clients for so long, after one client has asked every question once."""
    load, bodies = Load(), sample_questions()
    async with server_client() as client:
        for index, body in enumerate(bodies):
            load.answers[index] = {(await ask(client, body))[1]}
    watch = asyncio.create_task(watch_memory(process, load))
    began = time.perf_counter()
    await asyncio.gather(*(run_client(number, began + seconds, bodies, load) for number in range(clients)))
    load.seconds = time.perf_counter() - began
    watch.cancel()
    return load


def bench_server(clients: int, seconds: float, step: Callable[[str], None]) -> list[Row]:
    """The figures of the running server under a load, as the one row of a table; times in seconds.

    rate: answers a second; ttft: from a request to the first piece of its answer
    same_answer: of the questions, those that had the same answer every time; the first time each was asked without load
    memory_early_bytes, memory_late_bytes: medians of the second and the last quarter of the time

    Raises SpecprefillError without a server.
    """
    state = server_state()
    if state is None:
        raise SpecprefillError("no server is running; start one with `specprefill serve`")
    step(f"{clients:,} clients ask for {seconds:g} s")
    load = asyncio.run(measure(clients, seconds, state["process"]))
    quarter = max(1, len(load.memory) // 4)
    median_ttft, p99 = np.percentile(load.ttfts, (50, 99)).tolist() if load.ttfts else (None, None)
    return [
        {
            "clients": clients,
            "seconds": load.seconds,
            "answers": len(load.ttfts),
            "rate": len(load.ttfts) / load.seconds,
            "errors": len(load.errors),
            "first_errors": load.errors[:3],
            "ttft_median": median_ttft,
            "ttft_p99": p99,
            "questions": len(load.answers),
            "same_answer": sum(len(texts) == 1 for texts in load.answers.values()),
            "memory_early_bytes": int(median(load.memory[quarter : 2 * quarter] or load.memory)),
            "memory_late_bytes": int(median(load.memory[-quarter:])),
        }
    ]
