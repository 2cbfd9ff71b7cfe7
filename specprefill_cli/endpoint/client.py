"""Streamed chat requests to an OpenAI-compatible server, with retries and short errors."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from specprefill_cli.errors import PromptTooLong, SpecprefillError, one_line, pip_command
from specprefill_cli.models.sources.refs import NO_KEY, EndpointRef
from specprefill_cli.settings import Settings

# Error texts of servers for a prompt beyond the model's context.
TOO_LONG = re.compile(
    r"context[_ ](?:length|size|window)|exceed_context|maximum context|(?:prompt|input) is too long|too many tokens",
    re.IGNORECASE,
)
KEY_VARIABLE = "OPENAI_API_KEY"
# A CPU may prefill for minutes before the first token.
TIMEOUT_SECONDS, CONNECT_SECONDS = 600.0, 10.0
# How often the client asks again, where the server is busy, fails or cannot be reached.
RETRIES = 2
# The name of the limit for OpenAI's reasoning models, which take no sampling.
NEWER_LIMIT = "max_completion_tokens"
KEY_REFUSED, BUSY = f"set {KEY_VARIABLE} to a key that it accepts", "ask again later, or lower --concurrency"
# What to do about a status; about any other: see the server's log.
REMEDIES = {
    400: "leave out the option that it names",
    401: KEY_REFUSED,
    403: KEY_REFUSED,
    404: "`curl {url}/models` lists the models",
    429: BUSY,
    503: BUSY,
}

# What to do about other failures.
LATE = "ask again, send it less text (--mode select, a smaller --keep), or see whether the server is busy"
UNREACHED = "start the server, or check the address and the port"
SHORTEN = "use --mode select, a smaller --keep, or serve the model with a longer context"
BROKEN = "see the server's log, and check the address: for most servers it ends with /v1"


class EndpointError(SpecprefillError):
    """The server of an endpoint cannot be reached, refuses, or fails."""


@dataclass
class Client:
    """Sends requests to a model of a server, from any number of threads. key: sent, never shown."""

    ref: EndpointRef
    key: str = field(default_factory=lambda: os.environ.get(KEY_VARIABLE) or NO_KEY, repr=False)
    timeout: float = TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError as error:
            problem = f"{self.ref.name}: an endpoint needs the package openai; install it with {pip_command('openai')}"
            raise SpecprefillError(problem) from error
        timeout = openai.Timeout(self.timeout, connect=min(CONNECT_SECONDS, self.timeout))
        self.openai = openai.OpenAI(api_key=self.key, base_url=self.ref.url, max_retries=RETRIES, timeout=timeout)

    def send(self, messages: Sequence[dict[str, str]], settings: Settings, limit: str = "max_tokens") -> "Reply":
        """Request the next message of a chat as a stream. limit: its name. Raises EndpointError, PromptTooLong."""
        # `top_k` is not part of OpenAI's API. It is sent only where the user sets it.
        extra: dict[str, Any] = {"extra_body": {"top_k": settings.top_k}} if settings.top_k else {}
        if limit != NEWER_LIMIT:
            extra |= {"temperature": settings.temperature, "top_p": settings.top_p}
        try:
            stream = self.openai.chat.completions.create(
                model=self.ref.model,
                messages=cast(Any, list(messages)),
                stream=True,
                stream_options={"include_usage": True},
                seed=settings.seed,
                **extra | {limit: settings.max_new_tokens},
            )
        except Exception as error:
            if limit != NEWER_LIMIT and NEWER_LIMIT in str(error):
                return self.send(messages, settings, NEWER_LIMIT)
            raise self.translate(error, streaming=False) from error
        return Reply(self, stream)

    def translate(self, error: Any, streaming: bool) -> SpecprefillError:
        """The error to raise in place of the library's; streaming: whether the reply had begun."""
        ref, cause, body = self.ref, error.__cause__ or error, getattr(error, "body", None)
        # Of `{"error": "..."}` and `{"detail": ...}`, which some servers send, the library shows nothing.
        is_shown = isinstance(body, dict) and "message" in body
        said = "" if is_shown or str(body).startswith(("None", "<")) else f" - {body}"
        detail = one_line(" ".join(((str(cause) or type(cause).__name__) + said).split()))
        detail = detail if self.key == NO_KEY else detail.replace(self.key, "***")
        shown = detail[:200]
        # Compared by name, because versions of the library differ in the package of their transport.
        class_names = {base.__name__ for base in type(error).__mro__}
        if class_names & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
            return EndpointError(f"{ref.name}: no answer within {self.timeout:g} s; {LATE}")
        if "APIError" not in class_names or (streaming and "APIConnectionError" in class_names):
            return self.broken_reply(shown)
        if "APIConnectionError" in class_names:
            return EndpointError(f"{ref.url}: cannot be reached ({shown}); {UNREACHED}")
        if TOO_LONG.search(detail):
            return PromptTooLong(f"{ref.name}: the prompt does not fit the model's context ({shown}); {SHORTEN}")
        remedy = REMEDIES.get(getattr(error, "status_code", 0), "see the server's log").format(url=ref.url)
        return EndpointError(f"{ref.url}: {shown}; {remedy}")

    def broken_reply(self, cause: str) -> EndpointError:
        """The error for a reply that breaks off, or that is no streamed chat completion."""
        return EndpointError(f"{self.ref.url}: the reply breaks off or is no chat completion ({cause}); {BROKEN}")


@dataclass
class Reply:
    """A streamed message, iterated in pieces of text. prompt_tokens, completion_tokens: by the server, if it counts."""

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
                for choice in (chunk.choices or [])[:1]:
                    self.finish_reason = choice.finish_reason or self.finish_reason
                    if choice.delta and choice.delta.content:
                        yield str(choice.delta.content)
        except Exception as error:
            # Parsing the reply of another program may raise any error.
            raise self.client.translate(error, streaming=True) from error
        if not received:
            raise self.client.broken_reply("it is empty")
        if self.finish_reason is None:
            raise self.client.broken_reply("it ended without a reason")
