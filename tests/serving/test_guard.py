"""Limits of the HTTP server: slow, large and foreign requests, with a small application and no model."""

import asyncio
import contextlib
import json
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Done
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.serving import guard
from specprefill_cli.serving.api import application
from specprefill_cli.serving.backend import Backend, ServeOptions
from specprefill_cli.serving.body import json_body
from specprefill_cli.serving.guard import ApiError, AsciiResponse, Guard, http_server, is_own_host
from specprefill_cli.serving.listening import HAS_UNIX_SOCKETS, parse_address, private_folder, read_token, unix_listener
from specprefill_cli.serving.metrics import Metrics
from specprefill_cli.serving.start import serve

POSIX = pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="needs Unix sockets")


async def echo(request: Request):
    try:
        return PlainTextResponse(json.dumps(await json_body(request, 1000)))
    except ApiError as error:
        return error.response()


@contextlib.asynccontextmanager
async def serving(listener):
    """The small application on a listening socket."""
    routes = [Route("/", echo, methods=["POST"]), Route("/healthz", lambda _: PlainTextResponse("ok"))]
    server = http_server(Guard(Starlette(routes=routes), None, lambda *_: None))
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        await task


def check_server(check):
    """Run a check against the small application on loopback."""

    async def run():
        async with serving(socket.create_server(("127.0.0.1", 0))) as (host, port):
            await check(host, port)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_slow_headers_are_cut_off_and_others_are_served(monkeypatch, capfd):
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.2)

    async def check(host, port):
        slow = [await asyncio.open_connection(host, port) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"POST / HTTP/1.1\r\nHost: local")
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(f"http://{host}:{port}/", json={"a": 1})).json() == {"a": 1}
        for reader, _ in slow:
            assert await reader.read() == b""

    check_server(check)
    assert "no complete headers within" in capfd.readouterr().err


def test_header_flood_is_refused():
    async def check(host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Flood: " + b"a" * 100_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")

    check_server(check)


def test_large_bodies_are_refused_with_and_without_a_length():
    async def chunks():
        for _ in range(20):
            yield b"x" * 100

    async def check(host, port):
        async with httpx.AsyncClient(trust_env=False) as client:
            for content in (b"x" * 2000, chunks()):
                assert (await client.post(f"http://{host}:{port}/", content=content)).status_code == 413

    check_server(check)


def test_connections_have_a_limit(monkeypatch):
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)

    async def check(host, port):
        connections = [await asyncio.open_connection(host, port) for _ in range(2)]
        for status in (b"200", b"503"):
            reader, writer = connections[-1]
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
            connections.append(await asyncio.open_connection(host, port))

    check_server(check)


@POSIX
def test_the_socket_of_a_dead_server_is_replaced():
    with tempfile.TemporaryDirectory(prefix="sp") as folder:
        path = Path(folder) / "http.sock"
        unix_listener(path).close()
        assert path.exists()
        with unix_listener(path) as listener, socket.socket(socket.AF_UNIX) as client:
            listener.listen()
            client.connect(str(path))
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8777", True),
        ("localhost", True),
        ("[::1]:8777", True),
        ("192.168.1.4", True),
        ("attacker.example", False),
        ("127.0.0.1.nip.io:8777", False),
        ("localhost.attacker.example", False),
        ("", False),
        ("models.example:8777", True),
    ],
)
def test_names_of_this_machine_and_allowed_ones_are_hosts(host, own):
    assert is_own_host(host, ["Models.Example"]) == own


@POSIX
def test_folder_and_token_must_be_private(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(SpecprefillError, match="nobody else may enter"):
        private_folder()
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough")
    token.chmod(0o644)
    with pytest.raises(UsageError, match="others may read"):
        read_token(token)
    token.chmod(0o600)
    assert read_token(token) == "a-token-that-is-long-enough"
    token.write_text("short")
    with pytest.raises(UsageError, match="no token"):
        read_token(token)
    token.write_text("a-t\u00f6ken-that-is-long-enough", encoding="utf-8")
    with pytest.raises(UsageError, match="no token"):
        read_token(token)


def test_a_client_that_reads_nothing_is_given_up(monkeypatch, capfd):
    monkeypatch.setattr(guard, "WRITE_SECONDS", 0.2)

    async def check(host, port):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host, port))
        body = json.dumps({"a": "x" * 900}).encode()
        request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(connection, request * 100)

    check_server(check)
    assert "nothing read within" in capfd.readouterr().err


def test_names_that_utf_8_cannot_encode_are_answered():
    assert AsciiResponse({"name": "\ud800"}).body == b'{"name": "\\ud800"}'


def test_addresses_are_parsed():
    assert parse_address("127.0.0.1:8777") == ("127.0.0.1", 8777)
    assert parse_address("[::1]:80") == ("::1", 80)
    for wrong in ("8777", "localhost", ":8777", "localhost:http", "localhost:99999"):
        with pytest.raises(UsageError, match="give an address and a port"):
            parse_address(wrong)


def test_open_addresses_need_a_token_file(call, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code, _, err = call("serve", "--http", "0.0.0.0:0")
    assert (code, "other machines reach this address" in err) == (2, True)


def backend_of(engine, queue):
    options = ServeOptions(body_bytes=10_000, queue=queue)
    return Backend(engine=engine, documents=None, options=options, metrics=Metrics())


def ask_often(backend, count, paths_allowed=False):
    """The responses to questions to a backend whose engine does not run."""

    async def run():
        transport = httpx.ASGITransport(application(backend, paths_allowed))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"question": "Who?", "documents": [{"text": "The gate is green."}]}
            return await asyncio.gather(*(client.post("/v1/ask", json=body) for _ in range(count)))

    return asyncio.run(run())


def test_a_full_queue_says_when_to_come_back(random_session, capfd):
    engine = LocalEngine(random_session, independent=True)
    thread = threading.Timer(0.2, engine.run)
    thread.start()
    responses = ask_often(backend_of(engine, queue=1), 3)
    engine.close()
    thread.join(60)
    assert sorted(response.status_code for response in responses) == [200, 429, 429]
    assert all(int(response.headers["retry-after"]) > 0 for response in responses if response.status_code == 429)
    assert "refused with 429" in capfd.readouterr().err


def test_the_servers_own_user_waits_as_long_as_it_takes(random_session):
    engine = LocalEngine(random_session, independent=True)
    thread = threading.Timer(0.2, engine.run)
    thread.start()
    responses = ask_often(backend_of(engine, queue=0), 3, paths_allowed=True)
    engine.close()
    thread.join(60)
    assert [response.status_code for response in responses] == [200, 200, 200]


def test_an_engine_that_fails_ends_the_server(capfd):
    def run():
        raise RuntimeError("no device\nat all")

    engine = SimpleNamespace(run=run, close=lambda: None)
    assert asyncio.run(asyncio.wait_for(serve(engine, []), 60)) == 1
    assert capfd.readouterr().err == "specprefill serve: the engine failed with RuntimeError: no device\n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_answer(random_session, monkeypatch, stream):
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    complete = []

    def observe(_ticket, event):
        if isinstance(event, Done) and event.result.stopped != "interrupt":
            complete.append(event)

    engine = LocalEngine(random_session, observe=observe)
    backend = backend_of(engine, queue=1)
    body = {"question": "Who?", "documents": [{"text": "The gate is green."}], "stream": stream}
    body = json.dumps(body | {"mode": "full", "max_new_tokens": 3_000}).encode()

    async def check():
        listener = socket.create_server(("127.0.0.1", 0))
        server = http_server(application(backend, paths_allowed=True))
        task = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        head = f"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        if stream:
            await reader.readuntil(b"event: piece")
        else:
            while not engine.busy:
                await asyncio.sleep(0)
        writer.close()
        while engine.busy:
            await asyncio.sleep(0)
        assert not complete
        server.should_exit = True
        await task

    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        asyncio.run(asyncio.wait_for(check(), 60))
    finally:
        engine.close()
        thread.join(10)
    assert not thread.is_alive()
