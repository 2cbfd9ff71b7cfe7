"""Puts load on a running server: clients ask the sample questions in turn over its Unix socket.

Each client begins with a different question.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from statistics import median
from typing import Any

import numpy as np
import psutil

from specprefill_cli.engine.http import UnixConnection, error_from_response, server_sent
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import packaged_folder
from specprefill_cli.lab.tables import Columns, Row, figure, memory
from specprefill_cli.serving.control import HTTP_SOCKET, runtime_folder, server_state

# Seconds between two readings of the server's memory.
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
    """What the clients have observed.

    ttfts: seconds from a request to its first event; answers: all different answers, by question
    memory: resident bytes of the largest of the server's processes, over time
    """

    ttfts: list[float] = field(default_factory=list)
    answers: dict[int, set[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def sample_questions() -> list[dict[str, Any]]:
    """The request bodies of the sample questions, which name their documents by path."""
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


def ask(body: dict[str, Any]) -> tuple[float, str]:
    """Ask the server; return seconds to the first event, and the answer.

    Raises SpecprefillError where the server refuses or ends its answer early; OSError or HTTPException for a broken connection.
    """
    started, first_event = time.perf_counter(), None
    with closing(UnixConnection(runtime_folder() / HTTP_SOCKET)) as connection:
        connection.request("POST", "/v1/ask", json.dumps(body), {"Content-Type": "application/json"})
        connection.sock.settimeout(None)
        response = connection.getresponse()
        if response.status != 200:
            raise error_from_response(json.loads(response.read()))
        for name, event_data in server_sent(response):
            first_event = first_event or time.perf_counter()
            if name == "answer":
                return first_event - started, event_data["answer"]
    raise SpecprefillError("the server's stream ended without an answer")


def run_client(number: int, bodies: list[dict[str, Any]], load: Load, ended: threading.Event) -> None:
    """Ask question after question until `ended` is set."""
    while not ended.is_set():
        index = number % len(bodies)
        number += 1
        try:
            ttft, text = ask(bodies[index])
        except (HTTPException, OSError, ValueError, SpecprefillError) as error:
            load.errors.append(f"{type(error).__name__}: {error}")
            ended.wait(1)
            continue
        load.ttfts.append(ttft)
        load.answers[index].add(text)


def watch_memory(process: int, load: Load, ended: threading.Event) -> None:
    """Record the memory of the server and its engine at intervals until `ended` is set."""
    server = psutil.Process(process)
    while not ended.wait(MEMORY_INTERVAL if load.memory else 0):
        # A process may end between listing and reading it.
        with suppress(psutil.NoSuchProcess):
            load.memory.append(max(member.memory_info().rss for member in (server, *server.children())))


def bench_server(clients: int, seconds: float, step: Callable[[str], None]) -> list[Row]:
    """The figures of the running server under load, as a table with a single row; times in seconds.

    rate: answers a second; ttft: from a request to the first event of its answer
    same_answer: questions that got the same answer every time, including a first time without load
    memory_early_bytes, memory_late_bytes: medians over the second and the last quarter of the time

    Raises SpecprefillError without a server.
    """
    state = server_state()
    if state is None:
        raise SpecprefillError("no server is running; start one with `specprefill serve`")
    step(f"{clients:,} clients ask for {seconds:g} s")
    load, bodies, ended = Load(), sample_questions(), threading.Event()
    load.answers = {index: {ask(body)[1]} for index, body in enumerate(bodies)}
    began = time.perf_counter()
    with ThreadPoolExecutor(clients + 1) as pool:
        running = [pool.submit(run_client, number, bodies, load, ended) for number in range(clients)]
        running.append(pool.submit(watch_memory, state["process"], load, ended))
        try:
            time.sleep(seconds)
        finally:
            ended.set()
    for task in running:
        task.result()
    duration = time.perf_counter() - began
    quarter = max(1, len(load.memory) // 4)
    median_ttft, p99 = np.percentile(load.ttfts, (50, 99)).tolist() if load.ttfts else (None, None)
    return [
        {
            "clients": clients,
            "seconds": duration,
            "answers": len(load.ttfts),
            "rate": len(load.ttfts) / duration,
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
