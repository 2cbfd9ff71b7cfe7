"""Limits of the HTTP server: slow, large and foreign requests, with a small application and no model."""

import asyncio
import contextlib
import gzip
import json
import socket
import tempfile
import threading
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Done
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.serving import api, body, guard
from specprefill_cli.serving.body import json_body
from specprefill_cli.serving.chat import chat_application
from specprefill_cli.serving.context import Metrics, ServerContext
from specprefill_cli.serving.control import HAS_UNIX_SOCKETS, http_listener, private_folder, token_of, unix_listener
from specprefill_cli.serving.guard import ApiError, AsciiResponse, Guard, http_server

POSIX = pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="needs Unix sockets")


async def echo(request: Request):
    try:
        return PlainTextResponse(json.dumps(await json_body(request)))
    except ApiError as error:
        return error.response()


ROUTES = [Route("/", echo, methods=["POST"]), Route("/healthz", lambda _: PlainTextResponse("ok"))]
SMALL = Guard(None, application=Starlette(routes=ROUTES))


def run_with_server(check, application=SMALL):
    """Run a check against an application on loopback."""

    async def run():
        listener = socket.create_server(("127.0.0.1", 0))
        server = http_server(application)
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            await check(*listener.getsockname())
        finally:
            server.should_exit = True
            await task

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

    run_with_server(check)
    assert "no complete headers within" in capfd.readouterr().err


def test_a_client_that_reads_nothing_is_given_up(monkeypatch, capfd):
    monkeypatch.setattr(guard, "WRITE_SECONDS", 0.2)

    async def check(host, port):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host, port))
        content = json.dumps({"a": "x" * 900}).encode()
        request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(connection, request * 100)

    run_with_server(check)
    assert "nothing read within" in capfd.readouterr().err


def test_header_flood_is_refused():
    async def check(host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Flood: " + b"a" * 100_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")

    run_with_server(check)


def test_bodies_are_refused_above_the_limit_also_without_a_length_and_unpacked(monkeypatch):
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 1_000)

    async def chunks():
        for _ in range(20):
            yield b"x" * 100

    packed = gzip.compress(b'{"a": 1}')
    in_gzip = {packed: 200, gzip.compress(b"[" * 1_001): 413, packed[:-9]: 400, b"{}": 400}

    async def check(host, port):
        async with httpx.AsyncClient(trust_env=False) as client:
            for content, status in {b"x" * 2000: 413, chunks(): 413, **in_gzip}.items():
                headers = {"content-encoding": "gzip"} if content in in_gzip else {}
                reply = await client.post(f"http://{host}:{port}/", content=content, headers=headers)
                assert reply.status_code == status, content
                assert status != 200 or reply.json() == {"a": 1}

    run_with_server(check)


def test_connections_have_a_limit(monkeypatch):
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 3)

    async def check(host, port):
        connections = [await asyncio.open_connection(host, port) for _ in range(3)]
        for expected in (b"503", b"200"):
            reader, writer = connections.pop()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 " + expected)

    run_with_server(check)


@POSIX
def test_the_socket_of_a_dead_server_is_replaced_and_a_long_path_refused():
    with tempfile.TemporaryDirectory(prefix="sp") as folder:
        path = Path(folder) / "http.sock"
        unix_listener(path).close()
        assert path.exists()
        with unix_listener(path), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    with pytest.raises(SpecprefillError, match=r"cannot listen there \(.*\); set XDG_RUNTIME_DIR to another, shorter"):
        unix_listener(path.with_name("x" * 200))


@POSIX
def test_the_folder_must_be_private(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(SpecprefillError, match="nobody else may enter"):
        private_folder()


def test_the_token_is_created_once_or_what_the_file_holds(tmp_path):
    told = []
    token = token_of(tmp_path, told.append)
    assert len(token) > 40
    assert token_of(tmp_path, told.append) == token
    assert [token in line for line in told] == [True]
    file = tmp_path / "token"
    assert not HAS_UNIX_SOCKETS or file.stat().st_mode & 0o777 == 0o600
    file.write_text("mine\n")
    assert token_of(tmp_path, told.append) == "mine"
    file.write_text(" \n")
    with pytest.raises(UsageError, match="is empty"):
        token_of(tmp_path, told.append)


def test_names_that_utf_8_cannot_encode_are_answered():
    assert AsciiResponse({"name": "\ud800"}).body == b'{"name": "\\ud800"}'


def test_addresses_are_parsed():
    for address in ("127.0.0.1:0", "localhost:0"):
        with http_listener(address) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
    for address in ("8777", "localhost", ":8777", "localhost:http", "localhost:99999"):
        with pytest.raises(UsageError, match="give an address and a port"):
            http_listener(address)


def context_of(engine, **options):
    return ServerContext(engine, None, Metrics(), **options)


def post(context, path, values, count=1, method="POST"):
    """Post a body `count` times at once, and return the responses."""

    async def run():
        transport = httpx.ASGITransport(chat_application(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(client.request(method, path, json=values) for _ in range(count)))

    return asyncio.run(run())


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/ask", 405)])
def test_unknown_paths_and_methods_are_told_what_exists(method, path, status):
    (response,) = post(context_of(None, queue=1), path, {}, method=method)
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert message.startswith(f"{method} {path}: ")
    assert "POST /v1/chat/completions" in message
    assert response.headers.get("allow") == ("POST" if status == 405 else None)


@contextlib.contextmanager
def late_engine(session, seconds=0.2):
    """An engine that begins to answer these seconds after it has a question."""
    engine = LocalEngine(session, independent=True)

    def begin():
        with engine.changed:
            engine.changed.wait_for(lambda: engine.waiting or engine.closing)
        threading.Timer(seconds, engine.run).run()

    thread = threading.Thread(target=begin)
    thread.start()
    try:
        yield engine
    finally:
        engine.close()
        thread.join(60)
    assert not thread.is_alive()


ASKED = {"question": "Who?", "documents": [{"text": "The gate is green.", "name": "gate.txt"}]}


def test_a_full_queue_says_when_to_come_back(random_session, capfd):
    with late_engine(random_session) as engine:
        responses = post(context_of(engine, queue=1), "/v1/ask", ASKED, 2)
    answered, refused = sorted(responses, key=lambda response: response.status_code)
    assert (answered.status_code, refused.status_code) == (200, 429)
    assert int(refused.headers["retry-after"]) > 0
    lines = capfd.readouterr().err
    assert "refused with 429" in lines
    assert not any(text in lines for text in ("Who?", "gate.txt", "green"))


def test_the_servers_own_user_waits_for_a_full_queue(random_session):
    with late_engine(random_session) as engine:
        responses = post(context_of(engine, is_private=True, queue=0), "/v1/ask", ASKED, 3)
    assert [response.status_code for response in responses] == [200, 200, 200]


def test_a_stream_that_waits_sends_comments_and_then_its_events(random_session, monkeypatch):
    monkeypatch.setattr(api, "COMMENT_SECONDS", 0.01)
    messages = [{"role": "user", "content": "The gate is green.\n\nWho?"}]
    values = {"messages": messages, "stream": True, "max_new_tokens": 4}
    with late_engine(random_session) as engine:
        (response,) = post(context_of(engine, queue=1), "/v1/chat/completions", values)
    assert response.status_code == 200
    assert response.text.startswith(api.COMMENT)
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_answer(random_session, monkeypatch, stream):
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    done = []
    monkeypatch.setattr(Metrics, "observe", lambda _, event, waited: done.extend([event] * isinstance(event, Done)))
    content = json.dumps(ASKED | {"stream": stream, "mode": "full", "max_new_tokens": 3_000}).encode()

    async def check(host, port):
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        if stream:
            await reader.readuntil(b"event: piece")
        else:
            while not engine.busy:
                await asyncio.sleep(0)
        writer.close()
        while engine.busy:
            await asyncio.sleep(0)
        assert all(event.result.stopped == "interrupt" for event in done)

    with late_engine(random_session, 0) as engine:
        run_with_server(check, chat_application(context_of(engine, is_private=True, queue=1)))
