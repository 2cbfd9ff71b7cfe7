"""OpenAI's chat API: `POST /v1/chat/completions` and `GET /v1/models`. Only what is surely document may be thinned."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from specprefill_cli.batching.rows import unknown_keys
from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.engine.request import Done, Event, Piece
from specprefill_cli.engine.request import Request as Question
from specprefill_cli.prefill.intent import intent_of
from specprefill_cli.prompting import Template
from specprefill_cli.record import BASELINE, Record
from specprefill_cli.serving.api import MAX_SHOWN_CHARACTERS, TASKS, ask, build_application, event_stream
from specprefill_cli.serving.body import SETTINGS_KEY, json_body, override_settings, own_settings
from specprefill_cli.serving.context import ServerContext
from specprefill_cli.serving.guard import ApiError, AsciiResponse
from specprefill_cli.serving.messages import REASON, SILENT, Untouched, find_document, texts_of
from specprefill_cli.serving.thinning import SHORT_CHARACTERS, size_of
from specprefill_cli.settings import SETTINGS

ROLES = ("system", "developer", "user", "assistant")
# Fields that are not supported, each with the values that change nothing.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "functions"), (None, [])),
    **dict.fromkeys(("tool_choice", "function_call"), (None, "none", "auto")),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "logit_bias": (None, {}),
    "n": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
# Fields with the most tokens of the answer, the first one first.
LIMITS = ("max_new_tokens", "max_completion_tokens", "max_tokens")
# Further fields of the API; those about storage and accounting change nothing.
NEUTRAL = ("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key")
KNOWN = ("model", "messages", "stream", "stream_options", "stop", "cache_salt", *LIMITS, *NEUTRAL, *REFUSED)
MOST_STOP_TEXTS, PARAGRAPH = 4, "\n\n"
NAME, CHUNK = "conversation", "chat.completion.chunk"


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation as a prompt. document: may be thinned, unless there is a reason; context: further text, which stays."""

    system: str
    document: str
    question: str
    context: str = ""
    reason: str = ""


def chat_application(context: ServerContext) -> ASGIApp:
    """Build the application of a listening socket."""
    routes = {
        **{f"POST {path}": ask for path in TASKS},
        "POST /v1/chat/completions": complete_chat,
        **dict.fromkeys(("GET /v1/models", "GET /v1/models/{model:path}"), show_models),
    }
    return build_application(context, routes)


async def complete_chat(request: Request, context: ServerContext) -> Response:
    """Generate the next message of a conversation."""
    body = await json_body(request)
    check_model_name(body.get("model"), context)
    check_fields(body)
    overrides, document = own_settings(body)
    chat = await asyncio.to_thread(chat_of, body.get("messages"), document)
    given = {**body, "max_new_tokens": answer_limit(body), **overrides}
    settings = override_settings(context.session.settings, given)
    if chat.reason:
        settings = settings.varied(mode=BASELINE)
    question = Question(
        documents=Collection((one_page_document(NAME, clean_characters(chat.document)),)),
        question=chat.question,
        settings=settings,
        template=chat_template(chat, context.session.template),
        stop_texts=stop_texts_in(body),
        no_prefix_sharing=bool(body.get("cache_salt")),
    )
    unknown = [*unknown_keys(body, KNOWN), *(f"{SETTINGS_KEY}.{name}" for name in unknown_keys(overrides, ()))]
    ignored = [f"field '{name}' is unknown and was ignored" for name in unknown]
    heading = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": context.pair_name}
    headers = {REASON: chat.reason} if chat.reason else {}
    if body.get("stream") is not True:
        done = await context.answer(request, question)
        return AsciiResponse(completion(heading, done.result, ignored), headers=headers)
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    encode = partial(encode_chunks, heading=heading, with_usage=with_usage, ignored=ignored)
    response = await event_stream(request, context.events(question), encode)
    response.headers.update(headers)
    return response


async def show_models(request: Request, context: ServerContext) -> Response:
    """Describe the loaded pair: by its name, or as the only model of a list."""
    check_model_name(request.path_params.get("model"), context)
    model = {"id": context.pair_name, "object": "model", "created": int(context.started), "owned_by": "specprefill"}
    return AsciiResponse(model if request.path_params else {"object": "list", "data": [model]})


def check_model_name(model: object, context: ServerContext) -> None:
    """Raises ApiError for a model that is neither the loaded pair nor its target."""
    if model is not None and model not in (context.pair_name, context.session.pair.target.name):
        shown = repr(model)[:MAX_SHOWN_CHARACTERS]
        raise ApiError(404, f"model {shown}: not loaded; this server has {context.pair_name}", "model_not_found")


def check_fields(body: Mapping[str, Any]) -> None:
    """Raises ApiError for a field that is not supported."""
    for name, neutral_values in REFUSED.items():
        if body.get(name) not in neutral_values:
            raise ApiError(400, f"{name}: not supported by this server; leave it out")
    if not isinstance(body.get("stream_options"), dict | None):
        raise ApiError(400, "stream_options must be an object")


def answer_limit(body: Mapping[str, Any]) -> int | None:
    """The most tokens of the answer; None for the server's own limit. Raises UsageError with the client's own field."""
    name = next((name for name in LIMITS if body.get(name) is not None), None)
    # Some clients write -1 for no limit.
    if name is None or body[name] == -1:
        return None
    return replace(SETTINGS["max_new_tokens"], name=name).parse(body[name], "the request")


def stop_texts_in(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that end the answer. Raises ApiError for anything but a few strings."""
    stop = body.get("stop") or []
    texts = [stop] if isinstance(stop, str) else stop
    is_list = isinstance(texts, list) and len(texts) <= MOST_STOP_TEXTS
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, f"stop must be a string or a list of at most {MOST_STOP_TEXTS} strings")
    return tuple(texts)


def chat_of(messages: object, named: str = "") -> Chat:
    """Turn messages into a prompt. named: the document, where the client names it. Raises ApiError for other messages."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "messages must be a list of objects with role and content")
    document, question, reason = "", "", ""
    try:
        question, long_texts = find_document({"messages": messages}, named)
        document = PARAGRAPH.join(long_text.document.text for long_text in long_texts)
        for long_text in reversed(long_texts):
            long_text.replace("")
    except Untouched as untouched:
        reason = str(untouched)
    try:
        texts = texts_of(messages)
    except Untouched:
        expected = "content must be text, or a list of parts with text or files; tool calls are not supported"
        raise ApiError(400, f"messages: {expected}") from None
    groups = groupby(texts, key=lambda text: (text.role, text.number))
    turns = [(role, PARAGRAPH.join(question_last([text.value for text in group]))) for (role, _), group in groups]
    if any(role not in ROLES for role, _ in turns):
        raise ApiError(400, f"messages: role must be one of {', '.join(ROLES)}")
    system = clean_characters(PARAGRAPH.join(text for role, text in turns if role in ("system", "developer")))
    dialogue = [(role, text.strip()) for role, text in turns if role in ("user", "assistant")]
    if not dialogue or dialogue[-1][0] != "user" or not (dialogue[-1][1] or document):
        raise ApiError(400, "the last message must be the user's, and not empty")
    earlier = [f"{role.capitalize()}: {text}" for role, text in dialogue[:-1] if text]
    if not reason:
        # Only the question is scored for; the rest of the message stands before it.
        unasked = dialogue[-1][1]
        for line in question.splitlines():
            unasked = unasked.replace(line, "", 1)
        context = PARAGRAPH.join([*earlier, *filter(None, [unasked.strip()])])
        return Chat(system=system, document=document, context=context, question=question)
    before, _, question = dialogue[-1][1].rpartition(PARAGRAPH)
    document = PARAGRAPH.join([*earlier, *filter(None, [before])])
    return Chat(system=system, document=document, question=question, reason=reason)


def question_last(parts: Sequence[str]) -> Sequence[str]:
    """Move the first part of a message behind the others where it alone asks."""
    asks = [size_of(part) <= SHORT_CHARACTERS and intent_of(part).neither < SILENT for part in parts]
    return [*parts[1:], parts[0]] if asks[0] and not any(asks[1:]) else parts


def chat_template(chat: Chat, question_template: Template) -> Template:
    """The template of a conversation. A pair without a chat format keeps the text of `question_template`."""
    context = PARAGRAPH + chat.context if chat.context else ""
    between = PARAGRAPH if chat.document else ""
    if question_template.text is None:
        return Template("chat", None, chat.system or None, f"$document{between}$question", context=context)
    system = chat.system.replace("$", "$$") + PARAGRAPH if chat.system else ""
    return Template("chat", system + question_template.text, None, None, context=context)


def completion(heading: Mapping[str, Any], answer: Record, ignored: Sequence[str]) -> dict[str, Any]:
    """The answer as OpenAI's API writes it, with all warnings. ignored: warnings about fields of the request."""
    message = {"role": "assistant", "content": answer.answer, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.stopped}
    reply = {**heading, "object": "chat.completion", "choices": [choice], "usage": usage(answer)}
    return reply | {"warnings": [*answer.warnings, *ignored]}


def usage(answer: Record) -> dict[str, Any]:
    """Token counts of prompt and answer; `kept_tokens`: prompt tokens that the target computed."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.generated_tokens,
        "total_tokens": answer.prompt_tokens + answer.generated_tokens,
        "prompt_tokens_details": {"kept_tokens": answer.kept_tokens, "cached_tokens": answer.cached_tokens},
    }


async def encode_chunks(
    events: AsyncIterator[Event], heading: Mapping[str, Any], with_usage: bool, ignored: Sequence[str]
) -> AsyncIterator[str]:
    """Encode an answer as server-sent events of OpenAI's API."""

    def data(payload: Mapping[str, Any]) -> str:
        return f"data: {json.dumps(payload)}\n\n"

    def chunk(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return data({**heading, "object": CHUNK, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for event in events:
            if isinstance(event, Piece):
                yield chunk({"content": event.text})
            elif isinstance(event, Done):
                yield chunk({}, event.result.stopped, warnings=[*event.result.warnings, *ignored])
                if with_usage:
                    yield data({**heading, "object": CHUNK, "choices": [], "usage": usage(event.result)})
    except ApiError as error:
        yield data(error.body)
    yield "data: [DONE]\n\n"
