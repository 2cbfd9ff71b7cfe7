"""What goes wrong at an endpoint, as one line with cause and remedy."""

from __future__ import annotations

import re
from typing import Any

from specprefill_cli.documents.errors import one_line
from specprefill_cli.errors import PromptTooLong, SpecprefillError, first_line
from specprefill_cli.models.refs import NO_KEY, EndpointRef

# How servers say that a prompt is longer than their model's context.
TOO_LONG = re.compile(
    r"context[_ ](?:length|size|window)|exceed_context|maximum context|(?:prompt|input) is too long|too many tokens",
    re.IGNORECASE,
)
LONGEST_DETAIL = 200
HIDDEN = "***"
SHORTER = "use --mode select, a smaller --keep, or serve the model with a longer context"


class EndpointError(SpecprefillError):
    """The server of an endpoint cannot be reached, refuses, or fails."""


def explained(error: Exception, ref: EndpointRef, key: str, timeout: float, streaming: bool) -> SpecprefillError:
    """The error to raise for one of the client library, of its transport, or of a reply that cannot be read.

    key: never shown; timeout: seconds that the server had; streaming: whether it has begun to reply
    """
    # By name: the library's transport is another package in some of its versions.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"APITimeoutError", "TimeoutException", "TimeoutError"}:
        return EndpointError(
            f"{ref.name}: no answer within {timeout:g} s; ask again, send it less text (--mode select, a smaller --keep), or "
            "see whether the server is busy"
        )
    if "APIStatusError" in kinds:
        return refused(error, ref, detail_of(error, key))
    if kinds & {"APIConnectionError", "TransportError"}:
        cause = first_line(error.__cause__ or error)
        if streaming:
            return cut_off(ref, cause)
        return EndpointError(
            f"{ref.url}: cannot be reached ({cause}); start the server, or check the address and the port"
        )
    if "APIError" in kinds:
        return failed(ref, detail_of(error, key))
    return no_chat(ref, f"{type(error).__name__} while its reply was read")


def refused(error: Any, ref: EndpointRef, detail: str) -> SpecprefillError:
    """The error for a status other than 200."""
    status = error.status_code
    if TOO_LONG.search(detail):
        return PromptTooLong(f"{ref.name}: the prompt does not fit the model's context ({detail}); {SHORTER}")
    if status in (401, 403):
        return EndpointError(
            f"{ref.url}: refuses the key ({status}: {detail}); set OPENAI_API_KEY to one that it knows"
        )
    if status == 404:
        return EndpointError(
            f"{ref.name}: no such model or address ({status}: {detail}); `curl {ref.url}/models` lists the models"
        )
    if status in (429, 503):
        return EndpointError(f"{ref.url}: is busy ({status}: {detail}); ask again later, or lower --concurrency")
    if status >= 500:
        return failed(ref, f"{status}: {detail}")
    return EndpointError(f"{ref.url}: refuses the request ({status}: {detail}); leave out the option that it names")


def failed(ref: EndpointRef, detail: str) -> SpecprefillError:
    """The error for a server that says that it failed, before or while it answers."""
    if TOO_LONG.search(detail):
        return PromptTooLong(f"{ref.name}: the prompt does not fit the model's context ({detail}); {SHORTER}")
    return EndpointError(f"{ref.url}: failed ({detail}); see the server's log, and ask again")


def cut_off(ref: EndpointRef, cause: str) -> EndpointError:
    """The error for an answer that ends before the server says that it is complete."""
    return EndpointError(f"{ref.url}: the answer was cut off ({cause}); see the server's log, and ask again")


def no_chat(ref: EndpointRef, cause: str) -> EndpointError:
    """The error for a reply that is no streamed chat completion."""
    return EndpointError(
        f"{ref.url}: the reply is no streamed chat completion ({cause}); check the address: for most servers it ends "
        "with /v1"
    )


def detail_of(error: Any, key: str) -> str:
    """What the server says, on one line and without the key."""
    body = getattr(error, "body", None)
    body = body.get("error", body) if isinstance(body, dict) else body
    said = body.get("message") if isinstance(body, dict) else body
    kind = body.get("type") if isinstance(body, dict) else None
    text = said if isinstance(said, str) and said.strip() else str(getattr(error, "message", error))
    if isinstance(kind, str) and TOO_LONG.search(kind):
        text = f"{kind}: {text}"
    text = text if key == NO_KEY else text.replace(key, HIDDEN)
    return one_line(" ".join(text.split()))[:LONGEST_DETAIL]
