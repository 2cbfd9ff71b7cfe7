"""An OpenAI-compatible server on the loopback, with replies from a script."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "scripted"


def event(values):
    return f"data: {json.dumps(values)}\n\n".encode()


def piece(text, finish=None):
    delta = {"content": text} if text else {}
    return event({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def says(*texts, finish="stop", prompt_tokens=None):
    """Stream an answer. prompt_tokens: the server's count of the prompt, sent where it is set."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(texts), "total_tokens": 0}
    usage_events = [event({"id": "1", "choices": [], "usage": usage})] if prompt_tokens else []
    return stream_parts(*map(piece, texts), piece("", finish), *usage_events, b"data: [DONE]\n\n")


def stream_parts(*parts, length=None):
    """Stream these parts. length: a Content-Length beyond the parts."""

    def reply(handler):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        if length is not None:
            handler.send_header("content-length", str(length))
        handler.end_headers()
        for part in parts:
            handler.wfile.write(part)

    return reply


def reply_with(code, body, content_type="application/json", **headers):
    """Reply without a stream."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()

    def reply(handler):
        handler.send_response(code)
        handler.send_header("content-type", content_type)
        handler.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return reply


def error(code, message, **headers):
    return reply_with(code, {"error": {"message": message, "type": "error"}}, **headers)


def completion(text):
    """An answer that is not streamed."""
    message = {"role": "assistant", "content": text}
    return reply_with(200, {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def leave_bytes(handler):
    """Reply, send another reply that nobody asked for, and keep the connection open."""
    body = b"own" if handler.command == "GET" else b""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n%s" % body)
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nforeign")
    handler.close_connection = False


def wait_until_left(handler):
    """Send nothing until the client closes the connection."""
    handler.server.waits.set()
    assert handler.connection.recv(1) == b""
    handler.server.left.set()


def stream_until_left(handler):
    """Send the first piece of an answer, then nothing until the client closes the connection."""
    stream_parts(piece("42"))(handler)
    handler.wfile.flush()
    wait_until_left(handler)


def stay_silent(handler):
    """Send nothing until the end of the test."""
    handler.server.over.wait()


class Upstream:
    """The server's address, its script (a function from a request's body to its reply), and its requests so far."""

    def __init__(self, url):
        self.url = url
        self.script = lambda _body: says("42 ", "pence")
        self.bodies, self.keys = [], []
        # Each request as (method, path, headers, body).
        self.requests = []

    @property
    def target(self):
        return f"{self.url}#{MODEL}"

    @property
    def sent(self):
        """The text of the last request's last message."""
        return self.bodies[-1]["messages"][-1]["content"]


@contextmanager
def running_upstream():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["content-length"] or 0))
            upstream.requests.append((self.command, self.path, dict(self.headers), content))
            try:
                body = json.loads(content)
            except ValueError:
                body = None
            upstream.bodies.append(body)
            upstream.keys.append(self.headers["authorization"])
            upstream.script(body)(self)

        do_GET = do_HEAD = do_POST  # noqa: N815

        def log_message(self, *_arguments):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.over, server.waits, server.left = threading.Event(), threading.Event(), threading.Event()
    upstream = Upstream(f"http://127.0.0.1:{server.server_port}/v1")
    # Set when a reply waits for its client to leave, and when the client has left.
    upstream.waits, upstream.left = server.waits, server.left
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield upstream
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
