"""Load on a running server: `python -m specprefill_cli.lab.benchmarks.server_load --clients 64 --seconds 300`.

Every client asks the sample questions over the Unix socket, one after the other and each client from another one on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from specprefill_cli.resources import packaged_folder
from specprefill_cli.serving.control import server_state
from specprefill_cli.serving.places import HTTP_SOCKET, runtime_folder

# Seconds between two looks at the server's memory.
MEMORY_INTERVAL = 1.0


@dataclass
class Load:
    """What clients have seen.

    ttfts: seconds from a request to its first piece; answers: all that a question has had
    memory: bytes of the server's processes, over time
    """

    ttfts: list[float] = field(default_factory=list)
    answers: dict[int, set[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


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
    transport = httpx.AsyncHTTPTransport(uds=str(Path(runtime_folder()) / HTTP_SOCKET))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
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
        load.memory.append(max(member.memory_info().rss for member in (server, *server.children())))
        await asyncio.sleep(MEMORY_INTERVAL)


async def measure(clients: int, seconds: float, process: int) -> Load:
    """Ask with so many clients for so long, after one client has asked every question once."""
    load, bodies = Load(), sample_questions()
    transport = httpx.AsyncHTTPTransport(uds=str(Path(runtime_folder()) / HTTP_SOCKET))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        for index, body in enumerate(bodies):
            load.answers[index] = {(await ask(client, body))[1]}
    memory = asyncio.create_task(watch_memory(process, load))
    deadline = time.perf_counter() + seconds
    await asyncio.gather(*(run_client(number, deadline, bodies, load) for number in range(clients)))
    memory.cancel()
    return load


def summary(load: Load, clients: int, seconds: float) -> dict[str, Any]:
    """The figures of a load."""
    ttfts = sorted(load.ttfts)
    quarter = max(1, len(load.memory) // 4)
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": len(ttfts),
        "errors": len(load.errors),
        "first_errors": load.errors[:3],
        "ttft_p50_seconds": median(ttfts) if ttfts else None,
        "ttft_p99_seconds": ttfts[int(0.99 * (len(ttfts) - 1))] if ttfts else None,
        "answers_per_second": len(ttfts) / seconds,
        "questions_with_one_answer": sum(len(texts) == 1 for texts in load.answers.values()),
        "questions": len(load.answers),
        "memory_second_quarter_bytes": median(load.memory[quarter : 2 * quarter] or load.memory),
        "memory_last_quarter_bytes": median(load.memory[-quarter:]),
    }


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    state = server_state()
    if state is None:
        raise SystemExit("no server is running; start one with `specprefill serve`")
    load = asyncio.run(measure(arguments.clients, arguments.seconds, state["process"]))
    print(json.dumps(summary(load, arguments.clients, arguments.seconds)))


if __name__ == "__main__":
    main()
