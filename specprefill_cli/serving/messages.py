"""The messages of a chat request: their texts and files, the question, and what is document."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from specprefill_cli.documents.cleaning import clean_characters
from specprefill_cli.documents.document import Document, one_page_document
from specprefill_cli.errors import DocumentError
from specprefill_cli.prefill.intent import intent_of
from specprefill_cli.serving.body import read_entry
from specprefill_cli.serving.guard import ApiError
from specprefill_cli.serving.thinning import SHORT_CHARACTERS, Division, divide, pattern, size_of

# The share of all characters that has to be surely document.
CLEAR_MAJORITY = 0.6
# Stands for the number of all messages of the system.
SYSTEM = -1
# Probabilities above which a text asks about one place, needs everything, and asks nothing.
CLEAR, WHOLE, SILENT = 0.75, 0.75, 0.6
# The header with the reason why nothing was thinned.
REASON = "x-specprefill-reason"
# Roles whose messages may hold documents, and types of content parts that are documents.
ROLES, FILES = ("system", "developer", "user"), ("document", "file", "input_file")
NOT_TEXT, NAMED = "not text alone", "specprefill.document"


class Untouched(Exception):
    """A request that is forwarded as it came. The message is the reason."""


class RefusedDocument(ApiError):
    """A document that the client names, in a request that asks nothing about it, or that is not text."""


@dataclass(frozen=True)
class Text:
    """The text `holder[key]` of a message, or of a part of it. number: of the message."""

    role: str
    number: int
    holder: dict[str, Any]
    key: str

    @property
    def value(self) -> str:
        return str(self.holder[self.key])


@dataclass(frozen=True)
class LongText:
    """The characters [start, end) of a text, which may be thinned. source: the file that they were read from."""

    text: Text
    start: int
    end: int
    source: Document | None = None

    @property
    def document(self) -> Document:
        """The part that may be thinned."""
        return self.source or one_page_document("", clean_characters(self.text.value[self.start : self.end]))

    def replace(self, kept: str) -> None:
        """Write the kept text into the request, in place of the document."""
        whole = self.text.value
        self.text.holder[self.text.key] = whole[: self.start] + kept + whole[self.end :]


def texts_of(messages: object) -> list[Text]:
    """All texts of messages, without files. Raises Untouched for other content."""
    texts: list[Text] = []
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            raise Untouched(NOT_TEXT)
        role, content = str(message.get("role")), message.get("content")
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise Untouched("tools")
        if isinstance(content, str):
            texts.append(Text(role, number, message, "content"))
        elif content is not None or role != "assistant":
            texts += (Text(role, number, part, "text") for part in parts_of(content) if part["type"] == "text")
    return texts


def parts_of(content: object) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message. Raises Untouched for anything else than texts and files."""
    for part in content if isinstance(content, list) else (None,):
        if not isinstance(part, dict):
            raise Untouched(NOT_TEXT)
        if part.get("type") not in FILES and (part.get("type") != "text" or not isinstance(part.get("text"), str)):
            raise Untouched(NOT_TEXT)
        yield part


def read_files(body: Mapping[str, Any]) -> list[tuple[dict[str, Any], Document]]:
    """Read the files among the parts of messages, and turn these parts into text. Returns the parts, with their files.

    Raises Untouched for tool calls and content that is neither text nor file, DocumentError for an unreadable file.
    """
    messages = body.get("messages")
    texts_of(messages)
    contents = [message.get("content") for message in messages] if isinstance(messages, list) else []
    parts = [part for content in contents if isinstance(content, list) for part in parts_of(content)]
    try:
        files = [(part, file_in(part)) for part in parts if part["type"] in FILES]
    except ApiError as error:
        raise DocumentError(str(error)) from None
    for part, document in files:
        part.clear()
        part |= {"type": "text", "text": document.text}
    return files


def file_in(part: Mapping[str, Any]) -> Document:
    """Read the file in a part, in the formats of several APIs. Raises ApiError or DocumentError."""
    fields = dict(part)
    for key in ("source", "document", "file"):
        inner = fields.get(key)
        fields |= inner if isinstance(inner, dict) else {"text": inner} if isinstance(inner, str) else {}
    content = fields.get("file_data") or fields.get("data") or fields.get("base64")
    is_text = fields["type"] == "text" or not isinstance(content, str)
    name = next((fields[key] for key in ("filename", "title", "name") if isinstance(fields.get(key), str)), "file")
    own = {"text": fields.get("text", content)} if is_text else {"base64": str(content).rpartition("base64,")[2]}
    return read_entry(own | {"name": name}, f"messages: {name}")


def find_document(body: Mapping[str, Any], document: str = "") -> tuple[str, list[LongText]]:
    """The question of a request and its documents: those that the client names or sends as files, else those found.

    document: that `specprefill.document` names
    Replace the documents from the last to the first, because each is a range of its message.

    Raises Untouched for a request to leave as it is, RefusedDocument for a named document that nothing asks about, DocumentError
    for an unreadable file.
    """
    if not document and (body.get("tools") or body.get("functions")):
        raise Untouched("tools")
    try:
        files = read_files(body)
    except (Untouched, DocumentError) as error:
        # Without its document the request must not go on.
        refusal = RefusedDocument(400, f"{NAMED}: the messages must be text alone ({error})")
        raise (refusal if document else error) from None
    if files or document:
        return name_documents(body.get("messages"), document, files)
    return find_long_texts(body)


def find_long_texts(body: Mapping[str, Any]) -> tuple[str, list[LongText]]:
    """Find the question, and the texts of user and system that are surely document, in order.

    The question is asked by the last user message; where that holds none, by an earlier one.

    Raises Untouched for tool calls, without a clear question, for a question that needs the whole document, and where no clear
    majority of the text is surely document.
    """
    all_texts = texts_of(body.get("messages"))
    texts = [text for text in all_texts if text.role in ROLES]
    if not any(text.role == "user" for text in texts):
        raise Untouched("no question")
    divisions = [divide(text.value, text.role != "user") for text in texts]
    ranges = ((text, part) for text, division in zip(texts, divisions, strict=True) for part in division.documents)
    long_texts = [LongText(text, *part) for text, part in ranges]
    # Beside a document of the user's, the system's text is mostly rules.
    long_texts = [own for own in long_texts if own.text.role == "user"] or long_texts
    total = sum(size_of(text.value) for text in all_texts)
    if sum(size_of(text.text.value[text.start : text.end]) for text in long_texts) < CLEAR_MAJORITY * total:
        raise Untouched("short" if total <= SHORT_CHARACTERS else "mostly not document")
    return find_question(texts, divisions), long_texts


def find_question(texts: Sequence[Text], divisions: Sequence[Division]) -> str:
    """The question of a request, below the one before it in the conversation. Raises Untouched."""
    asked = defaultdict[int, list[str]](list)
    for text, division in zip(texts, divisions, strict=True):
        asked[text.number if text.role == "user" else SYSTEM] += division.asked
    has_rows = any(pattern("rows").search(text.value) for text in texts)
    numbers = sorted(asked.keys() - {SYSTEM}, reverse=True)
    for number, before in zip_longest(numbers, numbers[1:]):
        own = {piece: intent_of(piece) for piece in asked[number]}
        # `Why?` after an answer is about the question before it.
        known = [] if before is None else [piece for piece in asked[before] if intent_of(piece).place > CLEAR][-1:]
        follows = before is not None and bool(own) and all(map(pattern("follow_up").match, own))
        over_rows = has_rows and any(map(pattern("over_rows").search, own))
        vetoes = [*map(intent_of, asked[SYSTEM]), *([] if follows else own.values())]
        if over_rows or any(intent.whole > WHOLE for intent in vetoes):
            raise Untouched("the question needs everything")
        clear = [piece for piece, intent in own.items() if follows or intent.place > CLEAR]
        if clear and (known or not follows):
            return "\n".join(dict.fromkeys([*known, *clear]))[-SHORT_CHARACTERS:]
        if any(intent.neither < SILENT for intent in own.values()):
            raise Untouched("no clear question")
    # The user sends the document alone.
    if clear := [piece for piece in asked[SYSTEM] if intent_of(piece).place > CLEAR]:
        return "\n".join(clear)[-SHORT_CHARACTERS:]
    raise Untouched("no question")


def name_documents(
    messages: object, document: str, files: Sequence[tuple[dict[str, Any], Document]]
) -> tuple[str, list[LongText]]:
    """The question, the document that the client names, and its files. The document is put before the question if need be.

    Raises RefusedDocument or, for files, Untouched for a request that asks nothing.
    """
    texts = [text for text in texts_of(messages) if text.role in ROLES]
    read = {id(part): file for part, file in files}
    written = [text for text in texts if id(text.holder) not in read]
    asking = [text for text in written if text.role == "user" and text.value.replace(document, "").strip()]
    if not asking:
        refusal = RefusedDocument(400, f"{NAMED}: no message of the user asks about it")
        raise refusal if document else Untouched("no question")
    own = [text for text in written if text.number == asking[-1].number]
    question = "\n".join(text.value.replace(document, "").strip() for text in own).strip()
    place = next((text for text in written if document in text.value), own[0])
    if document not in place.value:
        place.holder[place.key] = f"{document}\n\n{place.value}"
    start = place.value.find(document)
    named = [LongText(place, start, start + len(document))] if document else []
    sent = [LongText(text, 0, len(text.value), read[id(text.holder)]) for text in texts if id(text.holder) in read]
    places = {id(text): number for number, text in enumerate(texts)}
    return question[-SHORT_CHARACTERS:], sorted([*named, *sent], key=lambda long_text: places[id(long_text.text)])
