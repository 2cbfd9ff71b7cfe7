"""A real server in its own runtime folder, and the command line that uses it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest


@pytest.fixture(autouse=True)
def no_network():
    """Allow these tests to use sockets on this machine."""


@dataclass
class RunningServer:
    process: subprocess.Popen
    folder: Path
    announced: list[str]

    @property
    def environment(self):
        # With calibrations of its own a command would not use the server.
        left_out = ("SPECPREFILL_SERVER", "SPECPREFILL_CALIBRATION")
        variables = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**variables, "XDG_RUNTIME_DIR": str(self.folder)}

    @property
    def token(self):
        return (self.folder / "specprefill" / "token").read_text().strip()

    @property
    def address(self):
        return re.search(r"http://[^,;]+", self.announced[-1])[0]

    def over_socket(self):
        transport = httpx.HTTPTransport(uds=str(self.folder / "specprefill" / "http.sock"))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)

    def over_http(self):
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False)

    def answers(self):
        with self.over_socket() as client:
            match = re.search(r"^specprefill_answers_total (\S+)", client.get("/metrics").text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    def run(self, *arguments, stdin=b"", **variables):
        command = [sys.executable, "-m", "specprefill_cli", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=self.environment | variables, timeout=120)
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextlib.contextmanager
def running_server(*options, ready=True, **variables):
    """Run a server with these options and environment variables. Its folder has a short path, as sockets need.

    ready: wait until it has loaded its pair
    """
    folder = Path(tempfile.mkdtemp(prefix="sp"))
    command = [sys.executable, "-m", "specprefill_cli", "serve", *options]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), **variables}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, start_new_session=True)
    try:
        announced = []
        while ready and (not announced or not announced[-1].startswith("ready: ")):
            line = process.stderr.readline().decode()
            assert line, f"the server ended: {announced}"
            announced.append(line)
        yield RunningServer(process, folder, announced)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def server():
    with running_server("--http", "127.0.0.1:0", "--allow-origin", "http://page.example") as running:
        yield running
