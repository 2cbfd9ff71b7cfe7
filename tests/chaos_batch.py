"""Kill the workers and the driver of a batch at random times: every row must be answered once, and in order.

    python -m tests.chaos_batch --kills 20 --seed 0
    python -m tests.chaos_batch --kills 20 --stub        # workers without a model

Every fourth kill, on average, hits the driver; whenever it has ended before the last row, it is started again with `--resume`.
Prints a line for each kill, then figures; the exit code is 1 where a row is missing, double, out of order or an error. Needs
Unix.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

STUB = Path(__file__).parent / "helpers" / "batch_workers.py"
DOCUMENTS = 8
BARN = "Barn {document}-{number} belongs to Ms. {name}. It was built in {year}, and its gate is {colour}.\n\n"
NAMES, COLOURS = ("Abel", "Brook", "Castle", "Dyer", "Ember"), ("green", "red", "blue")


def write_rows(folder: Path, rows: int, stub: bool) -> Path:
    """Rows about a few documents, those about each one together, and the documents."""
    for document in range(DOCUMENTS):
        barns = (
            BARN.format(document=document, number=n, name=NAMES[n % 5], year=1800 + n, colour=COLOURS[n % 3])
            for n in range(20)
        )
        (folder / f"{document}.md").write_text("".join(barns))
    source = folder / "rows.jsonl"
    with source.open("w") as stream:
        for number in range(rows):
            document = number * DOCUMENTS // rows
            question = f"work {20_000 + number}" if stub else f"Who owns barn {document}-{number % 20}?"
            row = {"id": f"r{number}", "question": question, "documents": [str(folder / f"{document}.md")]}
            stream.write(json.dumps(row) + "\n")
    return source


def command_for(options: argparse.Namespace, source: Path, out: Path) -> list[str]:
    """The batch, which resumes where there is an output."""
    if options.stub:
        return [sys.executable, str(STUB), str(source), str(out), str(options.workers)]
    answer = ["--out", str(out), "--resume", "--max-new-tokens", "8", "--mode", "select", "--keep", "0.3", "--quiet"]
    return [
        sys.executable,
        "-m",
        "specprefill_cli",
        "batch",
        str(source),
        *answer,
        "--workers",
        str(options.workers),
    ]


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    """The processes with a session, also those that are just starting."""
    workers = []
    for process in driver.children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "ray::RowActor" in line:
            workers.append(process)
    return workers


def kill_one(driver: psutil.Process, chance: random.Random) -> str:
    """Kill the driver or a worker; which, if there was one."""
    try:
        if chance.random() < 0.25:
            driver.kill()
            return "driver"
        workers = workers_of(driver)
        chance.choice(workers).kill()
        return "worker"
    except (psutil.NoSuchProcess, IndexError):
        return ""


def check(source: Path, out: Path, stub: bool) -> list[str]:
    """What is wrong with the output."""
    asked = [json.loads(line) for line in source.read_text().splitlines()]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    wrong = [f"{record['id']}: {record['error']['message']}" for record in records if "error" in record]
    if [record["id"] for record in records] != [row["id"] for row in asked]:
        wrong.append(f"{len(records)} records of {len(asked)} rows, {len({r['id'] for r in records})} different ones")
    questions = {row["id"]: row["question"] for row in asked}
    field = "answer" if stub else "question"
    return wrong + [
        f"{r['id']}: another row's answer" for r in records if r.get(field) not in (None, questions[r["id"]])
    ]


def main() -> int:
    """Run batches until all rows are answered, killing meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="longest time between two kills")
    parser.add_argument("--stub", action="store_true", help="workers without a model")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    began, kills, codes = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, out = write_rows(folder, options.rows, options.stub), folder / "answers.jsonl"
        while not codes or codes[-1] not in (0, 3):
            process = subprocess.Popen(command_for(options, source, out), stderr=subprocess.DEVNULL)
            while process.poll() is None and len(kills) < options.kills:
                try:
                    process.wait(timeout=chance.uniform(0, options.seconds))
                except subprocess.TimeoutExpired:
                    rows = len(out.read_bytes().splitlines()) if out.exists() else 0
                    victim = kill_one(psutil.Process(process.pid), chance)
                    if victim:
                        kills.append(victim)
                        print(f"kill {len(kills)}: {victim}, {rows} rows written", flush=True)
            codes.append(process.wait())
            print(f"the driver ended with {codes[-1]}", flush=True)
        wrong = check(source, out, options.stub)
    for text in wrong:
        print(text)
    print(
        f"{options.rows} rows, {kills.count('worker')} workers and {kills.count('driver')} drivers killed, {len(codes)} runs, "
        f"{len(wrong)} faults, {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong or len(kills) < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
