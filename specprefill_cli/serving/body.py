"""Bodies of requests: their JSON, the question in it, and its documents."""

import asyncio
import base64
import gzip
import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from starlette.requests import Request

from specprefill_cli.batching.rows import identifier_in, overrides_in, question_in, read_once, settings_with
from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.collect import URL
from specprefill_cli.documents.document import Collection, Document, one_page_document
from specprefill_cli.documents.registry import read_document
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.errors import DocumentError, one_line
from specprefill_cli.serving.guard import BODY_SECONDS, ApiError
from specprefill_cli.settings import SETTINGS, Settings

MAX_BODY_BYTES = 32 * 2**20
# On the user's own socket, where a command sends what it read from a pipe, in base64.
MAX_SOCKET_BODY_BYTES = 384 * 2**20
# The key of a chat request's body that holds what no other server knows.
SETTINGS_KEY = "specprefill"
KEYS = ("id", "question", "documents", "stream", "folder", "top", "cache_salt")
SHAPES = '{"text": "...", "name": "..."}, {"base64": "...", "name": "report.pdf"} or, on the socket, {"path": "/..."}'


def too_large(limit: int) -> ApiError:
    """The error for a body above the limit in bytes."""
    return ApiError(413, f"the body is larger than {limit:,} bytes; send less")


async def body_bytes(request: Request) -> bytes:
    """Read the body of a request, unpacked where it is gzip. Raises ApiError for one too large, too slow, or damaged."""
    limit = MAX_BODY_BYTES if request.client else MAX_SOCKET_BODY_BYTES
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large(limit)
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > limit:
                    raise too_large(limit)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    received = bytes(content)
    return await asyncio.to_thread(unpack, received) if is_gzip(request.headers) else received


def is_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the body below these headers is gzip."""
    return headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip")


def unpack(content: bytes) -> bytes:
    """Unpack gzip, and stop at the limit of bodies. Raises ApiError for a body that is too large or damaged."""
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_BODY_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise ApiError(400, "the body is damaged gzip; send it again, or as it is") from None
    if len(unpacked) > MAX_BODY_BYTES:
        raise too_large(MAX_BODY_BYTES)
    return unpacked


async def json_body(request: Request) -> dict[str, Any]:
    """Read a JSON object. Raises ApiError for a body that is too large, too slow, or no object."""
    body = await asyncio.to_thread(object_in, await body_bytes(request))
    if not body:
        raise ApiError(400, "the body must be a JSON object with fields, in UTF-8")
    return body


def object_in(content: bytes) -> dict[str, Any]:
    """Parse the JSON object in a body; {} where it is none. A large body takes seconds."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def own_settings(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Take the settings and the document under SETTINGS_KEY out of the body of a chat request. Raises ApiError."""
    own = body.pop(SETTINGS_KEY, None)
    if not isinstance(own, dict | None):
        raise ApiError(400, f'{SETTINGS_KEY} must be an object, such as {{"keep": 0.1}}')
    overrides = dict(own or {})
    document = overrides.pop("document", None) or ""
    if not isinstance(document, str):
        raise ApiError(400, f"{SETTINGS_KEY}.document must be text")
    return overrides, document


def override_settings(settings: Settings, body: Mapping[str, Any]) -> Settings:
    """Apply the settings in a body to the server's. Raises SpecprefillError for a wrong or a start-only setting."""
    overrides = overrides_in(body, "is the server's own; give it to `specprefill serve`")
    return settings_with(settings, overrides, "the request")


def parse_question(body: Mapping[str, Any], settings: Settings, paths_allowed: bool) -> Question:
    """The question in a body, with unread documents. Raises ApiError or SpecprefillError for a wrong or missing key."""
    identifier_in(body)
    documents, folder, top = body.get("documents"), body.get("folder"), body.get("top")
    if not isinstance(documents, list | None) or documents == [] or body.get("document") is not None:
        raise ApiError(400, f"documents must be a list of {SHAPES}; leave it out to ask about the server's own")
    if not paths_allowed and any(path_of(entry) is not None for entry in documents or ()):
        raise ApiError(403, "documents: only requests on the socket may name paths; send text or base64")
    # A whole number from 1, as `max_new_tokens`.
    whole = replace(SETTINGS["max_new_tokens"], name="top")
    # What is kept on disk would tell by its speed that another client sent the same text.
    reading = settings.varied(no_cache=settings.no_cache or bool(body.get("cache_salt")))
    return Question(
        documents=SentDocuments(documents or (), folder if isinstance(folder, str) else "", reading),
        question=question_in(body),
        settings=override_settings(settings, body),
        top=None if top is None else whole.parse(top, "the request"),
        no_prefix_sharing=bool(body.get("cache_salt")),
    )


@dataclass(frozen=True)
class SentDocuments:
    """The documents in a body; a call reads them. folder: base of relative paths, and of the names of their documents."""

    entries: Sequence[Any]
    folder: str
    settings: Settings

    def __call__(self) -> Collection:
        """Read them. Raises ApiError for a malformed entry, DocumentError for a document that cannot be read."""
        read: list[Document] = []
        skipped: list[str] = []
        for is_path, group in groupby(enumerate(self.entries), key=lambda numbered: path_of(numbered[1]) is not None):
            if is_path:
                collection = read_paths([str(path_of(entry)) for _, entry in group], self.folder, self.settings)
                read += collection.documents
                skipped += collection.skipped
            else:
                read += [read_entry(entry, f"documents[{n}]", f"document {n + 1}") for n, entry in group]
        return Collection(tuple(read), tuple(skipped), kept=not self.settings.no_cache)


def path_of(entry: object) -> str | None:
    """The file, folder or pattern that an entry of a body names; None where it names none."""
    path = entry.get("path") if isinstance(entry, dict) else entry
    return path if isinstance(path, str) else None


def read_entry(entry: Any, place: str, name: str = "") -> Document:
    """Read the document in an entry with text or base64. Raises ApiError, which begins with `place`, or DocumentError."""
    fields = entry if isinstance(entry, dict) else {}
    name, text, encoded = fields.get("name", name), fields.get("text"), fields.get("base64")
    if not isinstance(name, str):
        raise ApiError(400, f"{place}: name must be a string")
    if isinstance(text, str):
        if not text.strip():
            raise ApiError(400, f"{place}: the text is empty")
        return one_page_document(name, clean_characters(text))
    if not isinstance(encoded, str):
        raise ApiError(400, f"{place}: give {SHAPES}")
    try:
        content = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ApiError(400, f"{place}: not base64") from None
    return read_document(content, name)


def read_paths(names: Sequence[str], folder: str, settings: Settings) -> Collection:
    """Read files, folders and patterns. folder: base of relative paths, and of the names of their documents.

    Raises ApiError for a relative path without a folder and for a special file, DocumentError for an unreadable document.
    """
    paths = [os.path.join(folder, name) if name and not URL.match(name) else name for name in names]
    for path in paths:
        if path and not (os.path.isabs(path) or URL.match(path)):
            raise ApiError(400, f"{path}: the server runs in another folder; give an absolute path")
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise ApiError(400, f"{path}: no file or folder; send its content as base64")
    base, absolute = os.path.join(folder, ""), tuple(filter(os.path.isabs, names))
    try:
        collection = read_once(paths, settings.strict, not settings.no_cache)
    except DocumentError as error:
        raise DocumentError(str(error).replace(one_line(base), "")) from error
    documents = (
        document if document.name.startswith(absolute) else replace(document, name=document.name.removeprefix(base))
        for document in collection.documents
    )
    skipped = tuple(text.replace(one_line(base), "") for text in collection.skipped)
    return replace(collection, documents=tuple(documents), skipped=skipped)
