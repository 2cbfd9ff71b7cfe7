"""Streamed chat requests to an OpenAI-compatible server, with retries and short errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line, one_line
from specprefill_cli.installation import install_command
from specprefill_cli.models.refs import NO_KEY, EndpointRef
from specprefill_cli.settings import Settings

# Error texts of servers for a prompt beyond the model's context.
TOO_LONG = re.compile(
    r"context[_ ](?:length|size|window)|exceed_context|maximum context|(?:prompt|input) is too long|too many tokens",
    re.IGNORECASE,
)
MAX_DETAIL_CHARACTERS = 200
KEY_VARIABLE = "OPENAI_API_KEY"
# A CPU may prefill for minutes before the first token.
TIMEOUT_SECONDS, CONNECT_SECONDS = 600.0, 10.0
# How often the client asks again, where the server is busy, fails or cannot be reached.
RETRIES = 2
BUSY = (429, 503)


class EndpointError(SpecprefillError):
    """The server of an endpoint cannot be reached, refuses, or fails."""


def translate_error(error: Any, ref: EndpointRef, key: str, timeout: float, streaming: bool) -> SpecprefillError:
    """Translate an error of the client library, of its transport, or of a reply that cannot be parsed.

    key: never shown; timeout: seconds that the server had; streaming: whether the reply had begun
    """
    # Compared by name, because versions of the library differ in the package of their transport.
    class_names = {base.__name__ for base in type(error).__mro__}
    if class_names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return EndpointError(
            f"{ref.name}: no answer within {timeout:g} s; ask again, send it less text (--mode select, a smaller --keep), or "
            "see whether the server is busy"
        )
    if class_names & {"APIConnectionError", "TransportError"}:
        cause = first_line(error.__cause__ or error)
        if streaming:
            return cut_off_error(ref, cause)
        return EndpointError(
            f"{ref.url}: cannot be reached ({cause}); start the server, or check the address and the port"
        )
    if "APIError" not in class_names:
        return no_chat_error(ref, f"{type(error).__name__} while the reply was parsed")
    status, detail = getattr(error, "status_code", None), detail_of(error, key)
    if TOO_LONG.search(detail):
        return PromptTooLong(
            f"{ref.name}: the prompt does not fit the model's context ({detail}); use --mode select, a smaller --keep, or "
            "serve the model with a longer context"
        )
    reason = detail if status is None else f"{status}: {detail}"
    if status in (401, 403):
        return EndpointError(f"{ref.url}: refuses the key ({reason}); set OPENAI_API_KEY to a key that it accepts")
    if status == 404:
        return EndpointError(
            f"{ref.name}: no such model or address ({reason}); `curl {ref.url}/models` lists the models"
        )
    if status in BUSY:
        return EndpointError(f"{ref.url}: is busy ({reason}); ask again later, or lower --concurrency")
    if status is None or status >= 500:
        return EndpointError(f"{ref.url}: failed ({reason}); see the server's log, and ask again")
    return EndpointError(f"{ref.url}: refuses the request ({reason}); leave out the option that it names")


def cut_off_error(ref: EndpointRef, cause: str) -> EndpointError:
    """The error for an answer without a finish reason."""
    return EndpointError(f"{ref.url}: the answer was cut off ({cause}); see the server's log, and ask again")


def no_chat_error(ref: EndpointRef, cause: str) -> EndpointError:
    """The error for a reply that is not a streamed chat completion."""
    return EndpointError(
        f"{ref.url}: the reply is no streamed chat completion ({cause}); check the address: for most servers it ends "
        "with /v1"
    )


def detail_of(error: Any, key: str) -> str:
    """The server's error message, on a single line and without the key."""
    body = getattr(error, "body", None)
    body = body.get("error", body) if isinstance(body, dict) else body
    message = body.get("message") if isinstance(body, dict) else body
    error_type = body.get("type") if isinstance(body, dict) else None
    text = message if isinstance(message, str) and message.strip() else str(getattr(error, "message", error))
    if isinstance(error_type, str) and TOO_LONG.search(error_type):
        text = f"{error_type}: {text}"
    text = text if key == NO_KEY else text.replace(key, "***")
    return one_line(" ".join(text.split()))[:MAX_DETAIL_CHARACTERS]


@dataclass
class Client:
    """Sends requests to a model of a server, from any number of threads.

    key: sent, never shown
    """

    ref: EndpointRef
    key: str = field(repr=False)
    timeout: float = TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError as error:
            raise SpecprefillError(
                f"{self.ref.name}: an endpoint needs the package openai; install it with {install_command('endpoint')}"
            ) from error
        timeout = openai.Timeout(self.timeout, connect=min(CONNECT_SECONDS, self.timeout))
        self.openai = openai.OpenAI(api_key=self.key, base_url=self.ref.url, max_retries=RETRIES, timeout=timeout)

    def send(self, messages: Sequence[dict[str, str]], settings: Settings) -> Reply:
        """Request the next message of a chat as a stream.

        Raises EndpointError, or PromptTooLong for a prompt beyond the model's context.
        """
        # `top_k` is not part of OpenAI's API. It is sent only where the user sets it.
        extra: dict[str, Any] = {"extra_body": {"top_k": settings.top_k}} if settings.top_k else {}
        try:
            stream = self.openai.chat.completions.create(
                model=self.ref.model,
                messages=cast(Any, list(messages)),
                stream=True,
                stream_options={"include_usage": True},
                max_tokens=settings.max_new_tokens,
                temperature=settings.temperature,
                top_p=settings.top_p,
                seed=settings.seed,
                **extra,
            )
        except Exception as error:
            raise self.translate(error, streaming=False) from error
        return Reply(self, stream)

    def translate(self, error: Exception, streaming: bool) -> SpecprefillError:
        """The error to raise in place of the library's."""
        return translate_error(error, self.ref, self.key, self.timeout, streaming)


@dataclass
class Reply:
    """A streamed message. Iterating yields pieces of its text.

    finish_reason: why it ended; prompt_tokens, completion_tokens: the server's counts, None where it sends none
    """

    client: Client
    stream: Any
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text. Raises EndpointError for a reply that ends early or cannot be parsed."""
        received = False
        try:
            for chunk in self.stream:
                received = True
                usage = chunk.usage
                if usage is not None:
                    self.prompt_tokens, self.completion_tokens = usage.prompt_tokens, usage.completion_tokens
                for choice in chunk.choices[:1]:
                    self.finish_reason = choice.finish_reason or self.finish_reason
                    if choice.delta.content:
                        yield str(choice.delta.content)
        except Exception as error:
            # Parsing the reply of another program may raise any error.
            raise self.client.translate(error, streaming=True) from error
        if not received:
            raise no_chat_error(self.client.ref, "it is empty")
        if self.finish_reason is None:
            raise cut_off_error(self.client.ref, "it ended without a reason")

    def close(self) -> None:
        """Close the stream, so that the server can stop."""
        self.stream.close()


def open_client(ref: EndpointRef) -> Client:
    """Open a client with the key in the environment. Raises SpecprefillError where the package openai is missing."""
    return Client(ref, os.environ.get(KEY_VARIABLE) or NO_KEY)
