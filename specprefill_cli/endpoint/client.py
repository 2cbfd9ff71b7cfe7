"""One streamed chat request at a time to an OpenAI-compatible server: bounded retries, and every failure as one line."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specprefill_cli.endpoint.faults import cut_off, explained, no_chat
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.installation import install_command
from specprefill_cli.models.refs import NO_KEY, EndpointRef
from specprefill_cli.settings import Settings

KEY_VARIABLE = "OPENAI_API_KEY"
# A CPU may prefill for minutes before the first token.
TIMEOUT_SECONDS, CONNECT_SECONDS = 600.0, 10.0
# Attempts while the server says that it is busy, and how long it may ask to wait before the next.
ATTEMPTS, LONGEST_WAIT = 4, 60.0
BUSY = (429, 503)


@dataclass
class Client:
    """Sends requests to one model of a server, from any number of threads.

    key: sent, never shown; sleep: waits before another attempt
    """

    ref: EndpointRef
    key: str = field(repr=False)
    timeout: float = TIMEOUT_SECONDS
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError as error:
            raise SpecprefillError(
                f"{self.ref.name}: an endpoint needs the package openai; install it with {install_command('endpoint')}"
            ) from error
        timeout = openai.Timeout(self.timeout, connect=min(CONNECT_SECONDS, self.timeout))
        # Retries are made here, where their number and their waits are bounded.
        self.openai = openai.OpenAI(api_key=self.key, base_url=self.ref.url, max_retries=0, timeout=timeout)

    def send(self, messages: Sequence[dict[str, str]], settings: Settings) -> Reply:
        """Ask for the next message; it comes in pieces.

        Raises EndpointError, and PromptTooLong where the server says that its context is exceeded.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return Reply(self, self.openai.chat.completions.create(**self.request(messages, settings)))
            except Exception as error:
                wait = wait_before_retry(error, attempt)
                if wait is None:
                    raise self.explained(error, streaming=False) from error
                self.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def request(self, messages: Sequence[dict[str, str]], settings: Settings) -> dict[str, Any]:
        """The fields of a request; `top_k` is none of OpenAI's, and sent to those who ask for it alone."""
        return {
            "model": self.ref.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            **({"extra_body": {"top_k": settings.top_k}} if settings.top_k else {}),
        }

    def explained(self, error: Exception, streaming: bool) -> SpecprefillError:
        """The error to raise in place of one of the library's."""
        return explained(error, self.ref, self.key, self.timeout, streaming)


@dataclass
class Reply:
    """A message while it comes: iterate for pieces of its text.

    finish_reason: why it ended; prompt_tokens, completion_tokens: as the server counts them, where it tells
    """

    client: Client
    stream: Any
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Pieces of text. Raises EndpointError where the reply ends early or cannot be read."""
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
            # What another program sends can break its reading in any way.
            raise self.client.explained(error, streaming=True) from error
        if not received:
            raise no_chat(self.client.ref, "it is empty")
        if self.finish_reason is None:
            raise cut_off(self.client.ref, "it ended without a reason")

    def close(self) -> None:
        """Read no more of it, so that the server can stop."""
        self.stream.close()


def open_client(ref: EndpointRef) -> Client:
    """A client with the key of the environment. Raises SpecprefillError where the package openai is missing."""
    return Client(ref, os.environ.get(KEY_VARIABLE) or NO_KEY)


def wait_before_retry(error: Any, attempt: int) -> float | None:
    """Seconds to wait before the next attempt where the server is busy; None where there is none to be made."""
    if attempt == ATTEMPTS or getattr(error, "status_code", None) not in BUSY:
        return None
    try:
        wait = float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        # Without a number of seconds: 1, 2, 4.
        wait = 2.0 ** (attempt - 1)
    return wait if 0 <= wait <= LONGEST_WAIT and math.isfinite(wait) else None
