"""Requests that may be thinned: their documents and question; and requests that are forwarded as they are."""

import pytest

from specprefill_cli.serving.messages import Untouched, find_document, texts_of
from specprefill_cli.serving.thinning import SHORT_CHARACTERS
from tests.helpers.message_shapes import LANGUAGES, shapes

PARAGRAPH = "The harbour is open from nine to five, and the kiosk sells rope. " * 6
REPORT = "\n\n".join([PARAGRAPH.strip()] * 8)
QUESTION = "What does a berth cost?"


def request(*messages, **fields):
    return {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages], **fields}


@pytest.mark.parametrize("language", LANGUAGES)
def test_questions_stay_and_documents_are_thinned_in_all_shapes(language):
    kinds = {"place": [], "whole": []}
    for kind, question, messages in shapes(language):
        body = request(*messages)
        try:
            _, long_texts = find_document(body)
        except Untouched:
            kinds[kind].append(False)
            continue
        kinds[kind].append(True)
        before = sum(len(text.value) for text in texts_of(body["messages"]))
        for text in reversed(long_texts):
            text.replace("[...]")
        left = "\n".join(text.value for text in texts_of(body["messages"]))
        assert question in left
        assert len(left) < before / 2
    assert len(kinds["place"]) > 70
    assert sum(kinds["place"]) > 0.9 * len(kinds["place"])
    assert not any(kinds["whole"])


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
                "How many boats lie there in all?",
                "What are the fees at all piers?",
                "What is this document about?",
            )
        ),
    ],
)
def test_what_cannot_be_thinned_is_left_untouched(body, reason):
    with pytest.raises(Untouched, match=reason):
        find_document(body)


@pytest.mark.parametrize(
    "question",
    [
        "How many pounds does a berth cost?",
        "Which listed company owns it?",
        "Which compartment is for fabric softener?",
        "Could I rent my berth to tourists while I'm away?",
        "How regularly am I supposed to pay each month?",
        "How long am I protected in all if I sign up online?",
        "At what point does a guest count as a resident?",
        "Darf meine Schwester zwei Monate bei mir übernachten?",
        "¿Cada cuánto hay que limpiar el filtro?",
        "Obtient-on une réduction quand on reste un mois ?",
        "Entro quando devo segnalare una perdita alla compagnia?",
        "Можно ли приостановить карту из-за болезни?",
    ],
)
def test_questions_of_one_place_are_thinned(question):
    assert find_document(request(("user", LONG.replace(QUESTION, question))))[0] == question


def test_blanks_without_end_take_linear_time():
    with pytest.raises(Untouched):
        find_document(request(("user", "\n" + " " * 2_000_000 + "x")))


def test_a_question_inside_a_single_long_paragraph_stays():
    body = request(("user", f"{PARAGRAPH * 4}{QUESTION} {PARAGRAPH * 4}"))
    question, long_texts = find_document(body)
    assert question.startswith(QUESTION)
    assert len(long_texts) == 2
    assert not any(QUESTION in text.document.text for text in long_texts)
