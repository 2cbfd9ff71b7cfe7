"""Requests that may be thinned: their documents and question; and requests that are forwarded as they are."""

import tomllib
from pathlib import Path
from time import process_time

import pytest

from specprefill_cli.serving.messages import Untouched, find_document, texts_of
from specprefill_cli.serving.thinning import SHORT_CHARACTERS
from tests.helpers.message_shapes import LANGUAGES, shapes
from tests.helpers.samples import needs_languages
from tests.helpers.unseen_requests import thinned

pytestmark = needs_languages

PARAGRAPH = "The berths are open from nine to five, and the kiosk sells rope. " * 6
REPORT = "\n\n".join([PARAGRAPH.strip()] * 16)
QUESTION = "What does a berth cost?"
REQUESTS = tomllib.loads((Path(__file__).parents[1] / "data" / "requests.toml").read_text(encoding="utf-8"))


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
    assert sum(kinds["place"]) > 0.85 * len(kinds["place"])
    assert not any(kinds["whole"])


@pytest.mark.parametrize("name", ["b", "c"])
def test_of_new_requests_most_questions_and_few_tasks_are_thinned(name):
    counts, totals = thinned(name, step=4)
    assert counts["place"] > 0.55 * totals["place"]
    assert counts["whole"] < 0.05 * totals["whole"]


LONG = f"Use this.\n\n{REPORT}\n\n{QUESTION}"


@pytest.mark.parametrize(("body", "reason"), [
    ({}, "no question"), (request(), "no question"), (request(("system", LONG)), "no question"),
    (request(("user", "x" * (SHORT_CHARACTERS + 1))), "mostly not document"), (request(("user", QUESTION)), "short"),
    (request(("user", LONG.replace(QUESTION, "Write a letter about who must pay."))), "no clear question|needs everything"),
    (request(("user", LONG), tools=[{"type": "function"}]), "tools"),
    (request(("user", LONG), ("tool", "5")), "tools"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "tools"),
    (request(("user", [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}])), "not text alone"),
    (request(("user", None)), "not text alone"), ({"messages": ["x"]}, "not text alone"),
    *(
        (request(("user", LONG.replace(QUESTION, question))), "needs everything|no clear question")
        for question in REQUESTS["needs_everything"]
    ),
])  # fmt: skip
def test_what_cannot_be_thinned_is_left_untouched(body, reason):
    with pytest.raises(Untouched, match=reason):
        find_document(body)


@pytest.mark.parametrize("question", REQUESTS["one_place"])
def test_questions_of_one_place_are_thinned(question):
    asked, _ = find_document(request(("user", LONG.replace(QUESTION, question))))
    assert question.endswith(asked)


@pytest.mark.parametrize("instruction", REQUESTS["instructions"])
def test_instructions_about_the_answer_leave_its_question_clear(instruction):
    assert find_document(request(("user", LONG.replace("Use this.", instruction))))[0] == QUESTION


@pytest.mark.parametrize("shape", REQUESTS["shape"], ids=lambda shape: shape["name"])
def test_what_may_be_asked_is_kept(shape):
    reason, body = "", request(*shape["messages"])
    for message in body["messages"]:
        message["content"] = [
            {"type": "text", "text": text.format(d=REPORT, p=PARAGRAPH)} for text in message["content"]
        ]
    try:
        question, long_texts = find_document(body)
        assert question == shape.get("question", question)
        for long_text in reversed(long_texts):
            long_text.replace("[...]")
    except Untouched as untouched:
        reason = str(untouched)
    assert reason in shape.get("reason", "").split("|")
    assert [kept for kept in shape["kept"] if not any(kept in text.value for text in texts_of(body["messages"]))] == []


@pytest.mark.parametrize("text", ["\n" + " " * 2_000_000 + "x", "x\n" * 100_000])
def test_long_texts_take_linear_time(text):
    start = process_time()
    with pytest.raises(Untouched):
        find_document(request(("user", text)))
    assert process_time() - start < 15


def test_of_long_paragraphs_beside_a_question_three_sentences_stay():
    report = "\n\n".join([(PARAGRAPH * 3).strip()] * 4)
    _, (document,) = find_document(request(("user", f"{report}\n\n{QUESTION}")))
    assert len(report) - len(document.document.text) < 450


@pytest.mark.parametrize(("role", "opening", "text", "closing"), [
    ("user", "Cite each <text> tag by its number.\n\nNo more than ten French words.\n\n<text>", REPORT, "</text>"),
    ("user", "```python", f'{REPORT}\n"""A harbour."""\n{REPORT}', "```"),
    ("system", "Contexte :", REPORT.replace(" and ", " du "), ""),
])  # fmt: skip
def test_a_marked_or_foreign_text_is_a_single_document(role, opening, text, closing):
    _, (document,) = find_document(request((role, f"{opening}\n{text}\n{closing}\n"), ("user", QUESTION)))
    assert document.end - document.start > 0.7 * len(text)
    assert "French" not in document.document.text


@pytest.mark.parametrize("rows", ["Ann,Sales,7\n" * 400, '{"id": "Ann 7", "dept": "Sales"},' * 200 + "\n"])
def test_only_questions_about_single_rows_are_thinned(rows):
    assert find_document(request(("user", f"{rows}\nIn which room is Ann?")))[1]
    for task in ("How many work in Sales?", "Sort by room."):
        with pytest.raises(Untouched):
            find_document(request(("user", f"name,department,room\n{rows}\n{task}")))
