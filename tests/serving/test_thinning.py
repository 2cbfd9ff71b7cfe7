"""Requests that may be thinned: their documents and question; and requests that are forwarded as they are."""

import pytest

from specprefill_cli.serving.thinning import SHORT_CHARACTERS, Untouched, find_long_texts

PARAGRAPH = "The harbour is open from nine to five, and the kiosk sells rope. " * 6
REPORT = "\n\n".join([PARAGRAPH.strip()] * 8)
QUESTION = "What does a berth cost?"


def request(*messages, **fields):
    return {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages], **fields}


def documents(body):
    question, long_texts = find_long_texts(body)
    return question, [text.document for text in long_texts]


@pytest.mark.parametrize(
    ("content", "question", "document"),
    [
        (f"Use this text.\n\n{REPORT}\n\n{QUESTION}", QUESTION, REPORT),
        (f"Use this text.\r\n\r\n{REPORT}\r\n\r\n{QUESTION}\r\n", QUESTION, REPORT),
        (f"Use this text.\n\n{REPORT}\n\nQuestion: {QUESTION}\n\nAnswer:", f"Question: {QUESTION}\n\nAnswer:", REPORT),
        (f"{QUESTION}\n\n{REPORT}\n\nThe end.", QUESTION, REPORT),
        (f"Text:\n{'A long_texts line. ' * 400}\n{QUESTION}", QUESTION, "A long_texts line. " * 400),
    ],
)
def test_a_long_message_has_its_question_at_its_end_or_its_beginning(content, question, document):
    question_in_text, (text,) = documents(request(("user", content)))
    assert question_in_text == question
    assert text.strip() == document.strip()


def test_earlier_messages_and_parts_are_documents_of_a_short_question():
    parts = [{"type": "text", "text": f"Intro.\n\n{REPORT}\n\nThe end."}, {"type": "text", "text": QUESTION}]
    body = request(("system", f"Be brief.\n\n{REPORT}\n\nNever guess."), ("assistant", REPORT), ("user", parts))
    question, long_texts = find_long_texts(body)
    assert question == QUESTION
    assert [text.document for text in long_texts] == [REPORT, REPORT]
    for text, kept in zip(long_texts, "AB", strict=True):
        text.replace(kept)
    assert [message["content"] for message in body["messages"]] == [
        "Be brief.\n\nA\n\nNever guess.",
        REPORT,
        [{"type": "text", "text": "Intro.\n\nB\n\nThe end."}, {"type": "text", "text": QUESTION}],
    ]


LONG = f"Use this.\n\n{REPORT}\n\n{QUESTION}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "no question"),
        (request(), "no question"),
        (request(("system", LONG)), "no question"),
        (request(("user", "x" * (SHORT_CHARACTERS + 1))), "no question"),
        (request(("user", QUESTION)), "short"),
        (request(("user", LONG), tools=[{"type": "function"}]), "tools"),
        (request(("user", LONG), ("tool", "5")), "tools"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tools"),
        (request(("user", [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}])), "not text alone"),
        (request(("user", None)), "not text alone"),
        ({"messages": ["x"]}, "not text alone"),
        *(
            (request(("user", LONG.replace(QUESTION, question))), "the question needs everything")
            for question in (
                "Summarise the text.",
                "How many fees are there?",
                "What is this document about?",
            )
        ),
    ],
)
def test_what_cannot_be_thinned_is_left_untouched(body, reason):
    with pytest.raises(Untouched, match=reason):
        find_long_texts(body)


@pytest.mark.parametrize("question", ["How many pounds does a berth cost?", "Which listed company owns it?"])
def test_questions_of_one_place_are_thinned(question):
    assert find_long_texts(request(("user", LONG.replace(QUESTION, question))))[0] == question


def test_blanks_without_end_take_linear_time():
    question, _ = find_long_texts(request(("user", "\n" + " " * 2_000_000 + "x")))
    assert question == "x"
