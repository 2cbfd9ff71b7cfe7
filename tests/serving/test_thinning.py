"""Which requests may be thinned: where documents and question are told apart, and what is forwarded as it is."""

import pytest

from specprefill_cli.serving.thinning import SHORT_CHARACTERS, Untouched, split_request, with_texts

PARAGRAPH = "The harbour is open from nine to five, and the kiosk sells rope. " * 6
REPORT = "\n\n".join([PARAGRAPH.strip()] * 8)
QUESTION = "What does a berth cost?"


def chat_body(*messages, **fields):
    return {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages], **fields}


def documents(body):
    question, long = split_request(body)
    return question, [text.document for text in long]


@pytest.mark.parametrize(
    ("content", "question", "document"),
    [
        (f"Use this text.\n\n{REPORT}\n\n{QUESTION}", QUESTION, REPORT),
        (f"Use this text.\r\n\r\n{REPORT}\r\n\r\n{QUESTION}\r\n", QUESTION, REPORT),
        (f"Use this text.\n\n{REPORT}\n\nQuestion: {QUESTION}\n\nAnswer:", f"Question: {QUESTION}\n\nAnswer:", REPORT),
        (f"{QUESTION}\n\n{REPORT}\n\nThe end.", QUESTION, REPORT),
        (f"Text:\n{'A long line. ' * 400}\n{QUESTION}", QUESTION, "A long line. " * 400),
    ],
)
def test_a_long_message_has_its_question_at_its_end_or_its_beginning(content, question, document):
    found_question, (text,) = documents(chat_body(("user", content)))
    assert found_question == question
    assert text.strip() == document.strip()


def test_earlier_messages_and_parts_are_documents_of_a_short_question():
    parts = [{"type": "text", "text": f"Intro.\n\n{REPORT}\n\nThe end."}, {"type": "text", "text": QUESTION}]
    body = chat_body(("system", f"Be brief.\n\n{REPORT}\n\nNever guess."), ("assistant", REPORT), ("user", parts))
    question, long = split_request(body)
    assert question == QUESTION
    assert [(text.message, text.part, text.document) for text in long] == [(0, None, REPORT), (2, 0, REPORT)]
    thinned = with_texts(body, long, ["A", "B"])
    assert thinned["messages"][0]["content"] == "Be brief.\n\nA\n\nNever guess."
    assert thinned["messages"][2]["content"] == [{"type": "text", "text": "Intro.\n\nB\n\nThe end."}, parts[1]]
    assert thinned["messages"][1] is not body["messages"][1]
    assert body["messages"][0]["content"].endswith(f"{REPORT}\n\nNever guess.")


LONG = f"Use this.\n\n{REPORT}\n\n{QUESTION}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "no question"),
        (chat_body(), "no question"),
        (chat_body(("system", LONG)), "no question"),
        (chat_body(("user", "x" * (SHORT_CHARACTERS + 1))), "no question"),
        (chat_body(("user", QUESTION)), "short"),
        (chat_body(("user", LONG), tools=[{"type": "function"}]), "tools"),
        (chat_body(("user", LONG), ("tool", "5")), "tools"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tools"),
        (
            chat_body(("user", [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}])),
            "not text alone",
        ),
        (chat_body(("user", None)), "not text alone"),
        ({"messages": ["x"]}, "not text alone"),
        *(
            (chat_body(("user", LONG.replace(QUESTION, question))), "the question needs everything")
            for question in (
                "Summarise the text.",
                "List the fees.",
                "Count the berths.",
                "How many fees are there?",
                "What is this document about?",
                "Translate it into French.",
                "What are the key points?",
                "Name every fee.",
            )
        ),
    ],
)
def test_what_cannot_be_thinned_is_left_untouched(body, reason):
    with pytest.raises(Untouched, match=reason):
        split_request(body)


@pytest.mark.parametrize("question", ["How many pounds does a berth cost?", "Which listed company owns it?"])
def test_questions_of_one_place_are_thinned(question):
    assert split_request(chat_body(("user", LONG.replace(QUESTION, question))))[0] == question


def test_blanks_without_end_take_linear_time():
    question, _ = split_request(chat_body(("user", "\n" + " " * 2_000_000 + "x")))
    assert question == "x"
