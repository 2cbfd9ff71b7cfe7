"""Bodies of `POST /v1/ask`: a batch row whose documents come with it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from specprefill_cli.batching.answerer import settings_with
from specprefill_cli.batching.rows import OVERRIDES
from specprefill_cli.documents import read_collection
from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.documents.registry import read_document
from specprefill_cli.serving.guard import BODY_SECONDS, ApiError
from specprefill_cli.settings import SETTINGS, Settings

KEYS = ("id", "question", "documents", "stream")
SHAPES = '{"text": "...", "name": "..."}, {"base64": "...", "name": "report.pdf"} or, on the socket, {"path": "/..."}'


@dataclass(frozen=True, kw_only=True)
class AskBody:
    """A question over HTTP. documents: as they were given; ignored: unknown keys."""

    identifier: str
    question: str
    documents: list[Any]
    settings: Settings
    stream: bool
    ignored: tuple[str, ...]


async def json_body(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError for one that is too large, too slow, or no object."""
    too_large = ApiError(413, f"the body is larger than {limit:,} bytes; send less, or raise --body-limit")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    try:
        values = json.loads(bytes(content))
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON in UTF-8") from None
    if not isinstance(values, dict):
        raise ApiError(400, "the body must be a JSON object")
    return values


def ask_body(values: Mapping[str, Any], settings: Settings) -> AskBody:
    """The question in a body. Raises ApiError or UsageError, naming the key that is wrong or missing."""
    question, identifier = values.get("question"), values.get("id", "")
    documents = values.get("documents") or []
    if not isinstance(question, str) or not question.strip():
        raise ApiError(400, "question must be a string that is not empty")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ApiError(400, "id must be a string or a whole number")
    if not isinstance(documents, list):
        raise ApiError(400, f"documents must be a list of {SHAPES}")
    return AskBody(
        identifier=str(identifier),
        question=question,
        documents=documents,
        settings=overridden(settings, values),
        stream=values.get("stream") is True,
        ignored=tuple(key for key in values if key not in (*KEYS, *OVERRIDES)),
    )


def overridden(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The server's settings with those in a body. Raises ApiError, or UsageError for a wrong value."""
    fixed = next((key for key in values if key in SETTINGS and key not in OVERRIDES), None)
    if fixed is not None:
        raise ApiError(400, f"{fixed} is the server's own; give it to `specprefill serve`")
    overrides = {key: values[key] for key in OVERRIDES if values.get(key) is not None}
    return settings_with(settings, overrides, "the request")


async def read_all(documents: list[Any], paths_allowed: bool, gate: asyncio.Semaphore) -> Collection:
    """Read the documents of a body. gate: how many may be read at a time.

    Raises ApiError for one that is not given as it must be, DocumentError for one that cannot be read.
    """
    read: list[Document] = []
    for number, given in enumerate(documents):
        place = f"documents[{number}]"
        if isinstance(given, str) and paths_allowed:
            given = {"path": given}
        if not isinstance(given, dict):
            raise ApiError(400, f"{place}: give {SHAPES}")
        if "path" in given and not paths_allowed:
            raise ApiError(403, f"{place}: paths are read for the socket's user only; send text or base64")
        async with gate:
            read += await asyncio.to_thread(read_given, given, place, number + 1)
    return Collection(tuple(read))


def read_given(given: Mapping[str, Any], place: str, number: int) -> list[Document]:
    """The documents of one entry. Raises ApiError or DocumentError."""
    name = given.get("name", f"document {number}")
    if not isinstance(name, str):
        raise ApiError(400, f"{place}: name must be a string")
    if isinstance(given.get("text"), str):
        if not given["text"].strip():
            raise ApiError(400, f"{place}: the text is empty")
        return [one_page_document(name, clean_characters(given["text"]), "text/plain")]
    if isinstance(given.get("base64"), str):
        try:
            data = base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, f"{place}: not base64") from None
        return [read_document(data, name)]
    path = given.get("path")
    if isinstance(path, str):
        if not os.path.isabs(path):
            raise ApiError(400, f"{place}: the server has another folder; give an absolute path")
        return list(read_collection([path]).documents)
    raise ApiError(400, f"{place}: give {SHAPES}")
