"""Conversations as prompts: text that is always computed, and text that may be thinned."""

from base64 import b64encode

import pytest

from specprefill_cli.errors import DocumentError, UsageError
from specprefill_cli.prompting import Template, chat_parts
from specprefill_cli.serving.chat import Chat, answer_limit, chat_of, chat_template, check_fields
from specprefill_cli.serving.guard import ApiError
from specprefill_cli.serving.messages import find_document

REPORT = "The gate is green."


class EchoTokenizer:
    """A chat template that marks each message with its role."""

    chat_template = "given"
    name_or_path = "echo"

    def apply_chat_template(self, messages, **_):
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"


def test_only_what_is_surely_document_may_be_thinned():
    report = "The kiosk sells rope. The harbour opens at nine.\n\n" * 120
    chat = chat_of(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Read this.\n\n{report}\n\nIt is old."},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [{"type": "text", "text": "When does it open?"}]},
        ]
    )
    assert (chat.system, chat.reason) == ("Be brief.", "")
    assert "harbour" in chat.document
    assert chat.context.startswith("User: Read this.")
    assert chat.context.endswith("It is old.\n\nAssistant: Yes.")
    assert chat.question == "When does it open?"


DOCUMENT = "The kiosk sells rope. The harbour opens at nine.\n\n" * 40


@pytest.mark.parametrize("document", [DOCUMENT, REPORT])
@pytest.mark.parametrize("step", [1, -1])
def test_text_parts_may_come_in_any_order(document, step):
    parts = [{"type": "text", "text": text} for text in (document, "When does it open?")][::step]
    chat = chat_of([{"role": "user", "content": parts}])
    assert REPORT in chat.document or "harbour" in chat.document
    assert chat.question.endswith("When does it open?")


def test_a_file_among_the_parts_may_be_thinned():
    file = {"filename": "a.txt", "file_data": f"data:text/plain;base64,{b64encode(REPORT.encode()).decode()}"}
    parts = [{"type": "text", "text": "Summarise it."}, {"type": "file", "file": file}]
    chat = chat_of([{"role": "user", "content": parts}])
    assert (chat.document, chat.question, chat.reason) == (REPORT, "Summarise it.", "")
    with pytest.raises(DocumentError, match=r"^messages: file: give"):
        chat_of([{"role": "user", "content": [parts[0], {"type": "file", "file": {"file_id": "f"}}]}])


@pytest.mark.parametrize("text", ["Summarise it.", f"{REPORT}\n\nSummarise it.", f"Summarise it.\n\n{REPORT}"])
def test_a_document_that_the_client_names_may_be_thinned(text):
    chat = chat_of([{"role": "user", "content": text}], REPORT)
    assert (chat.document, chat.question, chat.reason) == (REPORT, "Summarise it.", "")


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": REPORT}], [{"role": "user", "content": [{"type": "image_url"}]}]]
)
def test_a_named_document_needs_a_question(messages):
    with pytest.raises(ApiError, match=r"^specprefill\.document: (no message|the messages must be text)"):
        find_document({"messages": messages}, REPORT)


def test_a_short_message_has_no_document():
    expected = Chat(system="", document="", question="Who?", reason="short")
    assert chat_of([{"role": "user", "content": "Who?"}]) == expected


@pytest.mark.parametrize("document", ["", REPORT])
def test_chat_models_get_system_and_question_whole(document):
    chat = Chat(system="Costs $5.", document=document, context="It is $6." if document else "", question="Who?")
    template = chat_template(chat, Template("ask", None, "unused", "$document $question"))
    prefix, between, suffix = chat_parts(template, EchoTokenizer())
    assert prefix == "<system>Costs $5.<user>"
    assert (between, template.context) == (("\n\n", "\n\nIt is $6.") if document else ("", ""))
    assert suffix == "<assistant>"


def test_a_pair_without_chat_format_keeps_its_template():
    question_template = Template("tiny", "Read this.\n\n$document\n\nQuestion: $question", None, None)
    template = chat_template(
        Chat(system="Costs $5.", document="d", context="It is $6.", question="q"), question_template
    )
    assert template.text_parts() == ("Costs $5.\n\nRead this.\n\n", "\n\nQuestion: ", "")
    assert template.context == "\n\nIt is $6."


@pytest.mark.parametrize("messages", [
    None, ["Who?"], [{"role": "robot", "content": "Who?"}],
    [{"role": "user", "content": [{"type": "input_audio"}]}],
    [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "", "tool_calls": [{}]}],
])  # fmt: skip
def test_messages_without_text_are_refused(messages):
    with pytest.raises(ApiError) as refused:
        chat_of(messages)
    assert refused.value.status == 400


def test_fields_that_change_nothing_are_accepted():
    check_fields({"n": 1, "tools": [], "frequency_penalty": 0.0, "response_format": {"type": "text"}, "user": "me"})
    for name, value in (("response_format", {"type": "json_object"}), ("functions", [{"name": "f"}])):
        with pytest.raises(ApiError, match=f"^{name}: not supported by this server; leave it out"):
            check_fields({name: value})
    with pytest.raises(UsageError, match="the request: max_tokens 0: must be at least 1"):
        answer_limit({"max_tokens": 0})
    check_fields({"stream_options": None})
    with pytest.raises(ApiError, match="stream_options must be an object"):
        check_fields({"stream_options": "x"})
