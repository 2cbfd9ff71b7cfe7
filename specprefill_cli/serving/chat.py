"""OpenAI's chat API: `POST /v1/chat/completions` and `GET /v1/models`.

System messages and the last user message are computed; earlier turns, and text before the last paragraph, are the
document that is thinned where that pays.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.engine.request import Done, Event, Piece
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.prompting import Template
from specprefill_cli.record import Record
from specprefill_cli.serving.backend import Backend, event_stream, while_connected
from specprefill_cli.serving.body import json_body, override_settings
from specprefill_cli.serving.guard import ApiError, AsciiResponse
from specprefill_cli.serving.thinning import Untouched, texts_of

ROLES = ("system", "developer", "user", "assistant")
# Fields that this server does not support, with the values that ask for nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "stop": (None, []),
    "logit_bias": (None, {}),
    "n": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
# Messages for what `texts_of` refuses.
REFUSALS = {
    "tools": "messages: tool calls are not supported",
    "not text alone": "messages: content must be text or a list of text parts; nothing else is supported",
}
PARAGRAPH = "\n\n"
NAME = "conversation"
# Characters of a client's value that a message shows.
MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation as a prompt. document: what may be thinned, empty where the conversation has one short message."""

    system: str
    document: str
    question: str


async def complete(request: Request, backend: Backend) -> Response:
    """The next message of a conversation."""
    values = await json_body(request, backend.options.body_bytes)
    check_model(values.get("model"), backend)
    check_fields(values)
    chat = chat_of(values.get("messages"))
    max_tokens = values.get("max_new_tokens") or values.get("max_completion_tokens") or values.get("max_tokens")
    settings = override_settings(backend.session.settings, {**values, "max_new_tokens": max_tokens})
    question = Question(
        documents=Collection((one_page_document(NAME, clean_characters(chat.document), "text/plain"),)),
        question=chat.question,
        settings=settings,
        template=chat_template(chat, backend.session.template),
    )
    heading = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": backend.pair_name}
    if values.get("stream") is not True:
        done = await while_connected(request, backend.answer(question))
        return AsciiResponse(completion(heading, done.result))
    with_usage = bool((values.get("stream_options") or {}).get("include_usage"))
    write = partial(chunks, heading=heading, with_usage=with_usage, confirm=settings.confirm)
    return await event_stream(request, backend.events(question), write)


async def list_models(request: Request, backend: Backend) -> Response:
    """The one pair that is loaded."""
    return AsciiResponse({"object": "list", "data": [model_of(backend)]})


async def show_model(request: Request, backend: Backend) -> Response:
    """The loaded pair, by its name."""
    check_model(request.path_params["model"], backend)
    return AsciiResponse(model_of(backend))


def model_of(backend: Backend) -> dict[str, Any]:
    """The loaded pair as OpenAI's API describes a model."""
    return {"id": backend.pair_name, "object": "model", "created": int(backend.started), "owned_by": "specprefill"}


def check_model(model: object, backend: Backend) -> None:
    """Raises ApiError for another model than the loaded pair, by its name or the target's."""
    if model is not None and model not in (backend.pair_name, backend.session.pair.target.name):
        shown = repr(model)[:MAX_SHOWN_CHARACTERS]
        raise ApiError(404, f"model {shown}: not loaded; this server has {backend.pair_name}", "model_not_found")


def check_fields(values: Mapping[str, Any]) -> None:
    """Raises ApiError for a field that asks for something that this server does not support."""
    for name, harmless in REFUSED.items():
        if values.get(name) not in harmless:
            raise ApiError(400, f"{name}: not supported; this server answers with text, and calls no tools")
    if not isinstance(values.get("stream_options"), dict | None):
        raise ApiError(400, "stream_options must be an object")


def chat_of(messages: object) -> Chat:
    """The conversation as a prompt. Raises ApiError for messages that are not text."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "messages must be a list of objects with role and content")
    try:
        parts = texts_of(messages)
    except Untouched as untouched:
        raise ApiError(400, REFUSALS[str(untouched)]) from None
    turns = [
        (role, "\n".join(text for *_, text in group))
        for (role, _), group in groupby(parts, key=lambda part: (part[0], part[1]))
    ]
    if any(role not in ROLES for role, _ in turns):
        raise ApiError(400, f"messages: role must be one of {', '.join(ROLES)}")
    system = clean_characters(PARAGRAPH.join(text for role, text in turns if role in ("system", "developer")))
    conversation = [(role, text) for role, text in turns if role in ("user", "assistant")]
    if not conversation or conversation[-1][0] != "user" or not conversation[-1][1].strip():
        raise ApiError(400, "the last message must be the user's, and not empty")
    earlier = [f"{role.capitalize()}: {text.strip()}" for role, text in conversation[:-1]]
    before, _, question = conversation[-1][1].strip().rpartition(PARAGRAPH)
    return Chat(system=system, document=PARAGRAPH.join([*earlier, *filter(None, [before])]), question=question)


def chat_template(chat: Chat, template: Template) -> Template:
    """The template that puts a conversation into a prompt; a pair without a chat format keeps its own.

    template: of the server's questions
    """
    separator = PARAGRAPH if chat.document else ""
    if template.text is None:
        return Template("chat", None, chat.system or None, f"$document{separator}$question")
    system = chat.system.replace("$", "$$") + PARAGRAPH if chat.system else ""
    return Template("chat", system + template.text, None, None)


def completion(heading: Mapping[str, Any], answer: Record) -> dict[str, Any]:
    """The answer as OpenAI's API writes it."""
    message = {"role": "assistant", "content": answer.answer, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.stopped}
    return {**heading, "object": "chat.completion", "choices": [choice], "usage": usage(answer)}


def usage(answer: Record) -> dict[str, Any]:
    """Tokens of prompt and answer; `kept_tokens` are those that the target computed."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.generated_tokens,
        "total_tokens": answer.prompt_tokens + answer.generated_tokens,
        "prompt_tokens_details": {"kept_tokens": answer.kept_tokens},
    }


async def chunks(
    events: AsyncIterator[Event], heading: Mapping[str, Any], with_usage: bool, confirm: bool
) -> AsyncIterator[str]:
    """The answer as server-sent events of OpenAI's API. An answer that may be corrected comes in one piece at the end."""

    def data(values: Mapping[str, Any]) -> str:
        return f"data: {json.dumps(values)}\n\n"

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return data({**heading, "object": "chat.completion.chunk", "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for event in events:
            if isinstance(event, Piece) and not confirm:
                yield chunk({"content": event.text})
            elif isinstance(event, Done):
                if confirm:
                    yield chunk({"content": event.result.answer})
                yield chunk({}, event.result.stopped)
                if with_usage:
                    counted = {"object": "chat.completion.chunk", "choices": [], "usage": usage(event.result)}
                    yield data({**heading, **counted})
    except ApiError as error:
        yield data(error.body)
    yield "data: [DONE]\n\n"
