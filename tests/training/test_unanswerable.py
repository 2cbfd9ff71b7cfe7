"""`not found`: the pairs of questions and paragraphs, and the figures of their margins."""

import json

import pytest

from specprefill_cli.documents.document import one_page_document
from specprefill_cli.settings import Settings
from specprefill_cli.training.unanswerable import not_found_figures, not_found_margin, question_on, question_pairs

TOWNS = ("Aldby", "Birke", "Corvey", "Dornum")


@pytest.fixture
def dev(tmp_path):
    """Two articles: four towns with a mayor each, and two paragraphs that share their only answer."""
    rows = []
    for number, town in enumerate(TOWNS):
        context = f"The mayor of {town} is Mr {town}son. Its bridge has {number + 3} arches."
        question, answers = f"Who is the mayor of {town}?", [f"Mr {town}son", f"{town}son"]
        rows.append({"id": number, "title": "Towns", "context": context, "question": question, "answers": answers})
    for colour in ("red", "blue"):
        gate = {"context": f"The {colour} gate is oak.", "question": "Wood?", "answers": ["oak"]}
        rows.append({"id": colour, "title": "Gates", **gate})
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_each_question_is_asked_of_its_own_and_of_another_paragraph_of_the_article(dev):
    pairs = question_pairs(dev, 100, 0)
    # The gates' question is answered by both paragraphs of their article.
    assert {answerable.identifier for answerable, _ in pairs} == {"0", "1", "2", "3"}
    for answerable, unanswerable in pairs:
        assert answerable.question == unanswerable.question
        assert answerable.answers[0] in answerable.collection.text
        assert not unanswerable.answers
        assert unanswerable.collection.text.startswith("The mayor of ")
        assert answerable.answers[0] not in unanswerable.collection.text
    assert len(question_pairs(dev, 2, 0)) == 2
    assert question_pairs(dev, 100, 0) == pairs != question_pairs(dev, 100, 1)


def test_threshold_lets_the_given_share_of_answerable_questions_pass():
    answerable = [float(value) for value in range(1, 21)]
    figures = not_found_figures(answerable, [18.5, 19.0, 19.5, 25.0] * 5)
    assert (figures["threshold"], figures["false_alarms"], figures["right"]) == (19.0, 5.0, 50.0)
    assert (figures["greedy_false_alarms"], figures["greedy_right"]) == (100.0, 100.0)
    assert figures["right_low"] <= 50.0 <= figures["right_high"]


def test_margin_is_positive_where_greedy_decoding_says_not_found(tiny_session):
    settings = Settings(mode="full", max_new_tokens=4)
    text = "The ferry to Norby leaves at 7:40 from pier 3. A ticket costs 12 crowns. Dogs travel free of charge."
    questions = ("When does the ferry to Norby leave?", "Who wrote the opera?", "Which king built the castle of Rosk?")
    margins = {}
    for question in questions:
        row = {"id": "1", "question": question}
        margin = not_found_margin(tiny_session, question_on(row, text, ()), settings)
        answer = tiny_session.ask([one_page_document("ferry", text)], question, settings).finished()
        assert (margin > 0) == answer.answer.startswith("not"), (question, margin, answer.answer)
        margins[question] = margin
    assert margins[questions[0]] < min(margins[question] for question in questions[1:])
