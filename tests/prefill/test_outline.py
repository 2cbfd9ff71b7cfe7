"""Questions about the whole document, and what is kept for them."""

import pytest
import torch

from specprefill_cli.prefill.auto_mode import choose_mode
from specprefill_cli.prefill.importance import WHOLE_TOKENS
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.selection import OUTLINE, select_scored
from specprefill_cli.prompting import Template
from specprefill_cli.settings import AUTO
from tests.helpers.samples import needs_languages
from tests.helpers.sessions import request_for

SECTIONS = "".join(
    f"# Part {number}\n\nGate {number} opens at nine. " + "The keeper lives by the mill. " * 30 + "\n\n"
    for number in range(8)
)
SUMMARY = "What is this about?"


@needs_languages
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (SUMMARY, True),
        ("Please summarise the report.", True),
        ("How many gates are listed?", True),
        ("What topics does the manual cover?", True),
        ("Turn it into a checklist for new staff.", True),
        ("Was sind die Kernaussagen?", True),
        ("What does the insurance cover?", False),
        ("When must the summary be in?", False),
        ("In which month are all gates shut?", False),
    ],
)
def test_questions_about_everything_are_known_in_any_language(question, expected):
    assert is_about_everything(question) is expected


@pytest.mark.parametrize(("question", "mode"), [(SUMMARY, "full"), ("Who lives by the mill?", "select")])
def test_auto_reads_all_of_a_short_document_for_them(tiny_session, question, mode):
    request = request_for(tiny_session, SECTIONS, question)
    assert request.prompt.length < WHOLE_TOKENS
    assert choose_mode(AUTO, request)[0] == mode


@pytest.mark.parametrize(("question", "ending"), [(SUMMARY, "in full"), ("Who lives by the mill?", "briefly")])
def test_a_template_has_other_words_for_them(random_session, monkeypatch, question, ending):
    tokenizer = random_session.pair.target.tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0]['content'] }}")
    bodies = ("$document Answer briefly: $question", "$document Answer in full: $question")
    random_session.template = Template("own", None, None, *bodies)
    prompt = request_for(random_session, SECTIONS, question).prompt
    assert tokenizer.decode(prompt.tokens[slice(prompt.document[1], prompt.question[0])]).endswith(f"{ending}:")


def test_auto_keeps_headings_and_first_sentences_of_a_longer_one(random_session):
    request = request_for(random_session, SECTIONS, SUMMARY)
    importance = torch.rand(request.document_tokens)
    selection = select_scored(request, Scores(importance=importance))
    text, offsets, start = request.collection.text, request.prompt.offsets, request.prompt.document[0]
    kept = "".join(
        text[slice(*offsets[place - start])]
        for place in selection.plan.kept_positions().tolist()
        if start <= place < request.prompt.document[1]
    )
    assert OUTLINE in selection.warnings
    assert sum(f"Gate {number} opens" in kept for number in range(8)) == 8
