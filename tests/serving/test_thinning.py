"""Requests that may be thinned: their documents and question; and requests that are forwarded as they are."""

from time import process_time

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
    assert len(kinds["place"]) >= 70
    assert sum(kinds["place"]) > 0.9 * len(kinds["place"])
    assert not any(kinds["whole"])


EVERYTHING = (
    "Summarise the text. / How many fees are there? / How many boats lie there in all? / What are the fees at all piers? / What "
    "is this document about? / What are the main rules? / Who is mentioned here? / Are there contradictions in it? / What do "
    "you think of this text? / How many words does it have? / Which section would this article appear in? / Come up with a "
    "question for the passage."
)
ONE_PLACE = (
    "How many pounds does a berth cost? / Which listed company owns it? / Which compartment is for fabric softener? / Could I "
    "rent my berth to tourists while I'm away? / How regularly am I supposed to pay each month? / How long am I protected in "
    "all if I sign up online? / At what point does a guest count as a resident? / Hi all, what does a berth cost? / I want you "
    "to answer this: who pays? / I need to know who owns it. / Please answer:\n1. Who pays?\n2. When is the rent due? / Darf "
    "meine Schwester zwei Monate bei mir übernachten? / ¿Cada cuánto hay que limpiar el filtro? / Z czego słynie bufet? / "
    "Obtient-on une réduction quand on reste un mois ? / Entro quando devo segnalare una perdita alla compagnia? / Можно ли "
    "приостановить карту из-за болезни?"
)
LONG = f"Use this.\n\n{REPORT}\n\n{QUESTION}"


@pytest.mark.parametrize(("body", "reason"), [
    ({}, "no question"), (request(), "no question"), (request(("system", LONG)), "no question"),
    (request(("user", "x" * (SHORT_CHARACTERS + 1))), "no question"), (request(("user", QUESTION)), "short"),
    (request(("user", LONG.replace(QUESTION, "Please write a letter about who must pay."))), "no clear question"),
    (request(("user", LONG), tools=[{"type": "function"}]), "tools"),
    (request(("user", LONG), ("tool", "5")), "tools"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tools"),
    (request(("user", [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}])), "not text alone"),
    (request(("user", None)), "not text alone"), ({"messages": ["x"]}, "not text alone"),
    *(
        (request(("user", LONG.replace(QUESTION, question))), "the question needs everything")
        for question in EVERYTHING.split(" / ")
    ),
])  # fmt: skip
def test_what_cannot_be_thinned_is_left_untouched(body, reason):
    with pytest.raises(Untouched, match=reason):
        find_document(body)


@pytest.mark.parametrize("question", ONE_PLACE.split(" / "))
def test_questions_of_one_place_are_thinned(question):
    assert find_document(request(("user", LONG.replace(QUESTION, question))))[0] == question


@pytest.mark.parametrize("text", ["\n" + " " * 2_000_000 + "x", "x\n" * 100_000])
def test_long_texts_take_linear_time(text):
    start = process_time()
    with pytest.raises(Untouched):
        find_document(request(("user", text)))
    assert process_time() - start < 15


@pytest.mark.parametrize(
    "text",
    [
        f"{PARAGRAPH * 4}{QUESTION} {PARAGRAPH * 4}",
        f"Assess the tone.\n\n{PARAGRAPH}\n\nWho pays? {REPORT}",
        f"Give a brief summary.\n\n{PARAGRAPH}{QUESTION}",
    ],
)
def test_a_question_of_the_document_is_no_reason_to_thin(text):
    with pytest.raises(Untouched):
        find_document(request(("user", text)))


def test_of_long_paragraphs_beside_a_question_one_sentence_stays():
    report = "\n\n".join([(PARAGRAPH * 2).strip()] * 4)
    _, (document,) = find_document(request(("user", f"{report}\n\n{QUESTION}")))
    assert len(report) - len(document.document.text) < 150


@pytest.mark.parametrize(("role", "opening", "text", "closing"), [
    ("user", "Cite each <text> tag by its number.\n\nNo more than ten French words.\n\n<text>", REPORT, "</text>"),
    ("user", "```python", f'{REPORT}\n"""A harbour."""\n{REPORT}', "```"),
    ("system", "", REPORT.replace(" and ", " du "), ""),
])  # fmt: skip
def test_a_marked_or_foreign_text_is_a_single_document(role, opening, text, closing):
    _, (document,) = find_document(request((role, f"{opening}\n{text}\n{closing}\n"), ("user", QUESTION)))
    assert document.end - document.start > 0.7 * len(text)
    assert "French" not in document.document.text


@pytest.mark.parametrize("rows", ["Ann,Sales,7\n" * 200, '{"id": "Ann 7", "dept": "Sales"},' * 200 + "\n"])
def test_only_questions_about_single_rows_are_thinned(rows):
    assert find_document(request(("user", f"{rows}\nWhat is Ann's room?")))[1]
    for task in ("How many work in Sales?", "Sort by room."):
        with pytest.raises(Untouched):
            find_document(request(("user", f"name,department,room\n{rows}\n{task}")))
