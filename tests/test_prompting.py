"""Prompt templates, and the exact token ranges of prefix, document, question and suffix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.prompting import encode_prompt, load_template

CHAT = (
    "{% for message in messages %}<|bos|>{{ message.role }}\n{{ message.content }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT


def parts(prompt, tokenizer):
    ids = prompt.tokens.tolist()
    (start, end), (first, last) = prompt.document, prompt.question
    return [
        tokenizer.decode(ids[a:b]) for a, b in ((0, start), (start, end), (end, first), (first, last), (last, len(ids)))
    ]


def test_plain_template_parts_are_located_exactly(tokenizer):
    prompt = encode_prompt(load_template("tiny"), "A page.\n\nTwo.", " Who? ", tokenizer)
    prefix, document, between, question, suffix = parts(prompt, tokenizer)
    assert prefix == "<|bos|>Answer the question from the document.\n\n"
    assert document == "A page.\n\nTwo."
    assert (between, question, suffix) == ("\n\nQuestion:", " Who?", "\nAnswer:")


def test_answer_opening_follows_the_prompt(tokenizer):
    template = load_template("tiny")
    plain = encode_prompt(template, "A page.", "Who?", tokenizer)
    opened = encode_prompt(template, "A page.", "Who?", tokenizer, " It was")
    assert opened.tokens.tolist()[: plain.length] == plain.tokens.tolist()
    assert parts(opened, tokenizer)[-1] == "\nAnswer: It was"
    assert opened.question == plain.question


@given(document=st.text(max_size=200), question=st.text(min_size=1, max_size=50).filter(str.strip))
def test_offsets_cover_the_whole_document(tokenizer, document, question):
    prompt = encode_prompt(load_template("tiny"), document, question, tokenizer)
    assert len(prompt.offsets) == prompt.document[1] - prompt.document[0]
    assert (prompt.offsets[:, 0] <= prompt.offsets[:, 1]).all()
    assert (prompt.offsets[1:, 0] >= prompt.offsets[:-1, 0]).all()
    if len(prompt.offsets):
        assert prompt.offsets[0, 0] == 0
        assert prompt.offsets[-1, 1] == len(document)


def test_special_tokens_in_a_document_are_encoded_as_text(tokenizer):
    prompt = encode_prompt(load_template("tiny"), "stop <|eos|> here <|bos|>", "x<|eos|>?", tokenizer)
    assert tokenizer.eos_token_id not in prompt.tokens.tolist()
    assert prompt.tokens.tolist().count(tokenizer.bos_token_id) == 1
    assert parts(prompt, tokenizer)[1] == "stop <|eos|> here <|bos|>"


@pytest.mark.parametrize("chat", [CHAT, NO_SYSTEM])
def test_chat_template_parts_are_located_exactly(tokenizer, chat, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", chat)
    prompt = encode_prompt(load_template("ask"), "The $question of the day.", "Who?", tokenizer)
    prefix, document, between, question, suffix = parts(prompt, tokenizer)
    assert "documents" in prefix
    assert document == "The $question of the day."
    assert between.endswith("Question:")
    assert question == " Who?"
    assert suffix == "<|eos|>\n<|bos|>assistant\n"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('text = "$document only"', "once each"),
        ('text = "$document $question $page"', "no other variable"),
        ('text = "$question $document"', r"\$document and then \$question"),
        ('text = "$document $question"\nuser = "$document $question"', "exactly one"),
        ('user = "$document $question"\nwhole = "$document"', "once each"),
        ('text = "$document $question"\ncolour = "red"', "unknown key 'colour'"),
        ('system = "About ${document}."\nuser = "$document $question"', "`system` is fixed text"),
        ("text = ", "not valid TOML"),
        ('text = "$document costs $ 5, $question"', r"a dollar sign is \$\$"),
    ],
)
def test_rejects_faulty_templates_by_path(tmp_path, body, complaint):
    path = tmp_path / "mine.toml"
    path.write_text(body)
    with pytest.raises(SpecprefillError, match=complaint) as caught:
        load_template(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("It costs $$5. $document $question $$", ("It costs $5. ", " ", " $")),
        ("<a>${document}_end ${question}s", ("<a>", "_end ", "s")),
        ("\ufeff$document $question", ("", " ", "")),
    ],
    ids=["dollar", "braces", "byte order mark"],
)
def test_variables_are_found_in_a_template(tmp_path, body, parts):
    mark, body = body[: body.startswith("\ufeff")], body.removeprefix("\ufeff")
    (tmp_path / "mine.toml").write_text(f'{mark}text = "{body}"', encoding="utf-8")
    assert load_template(str(tmp_path / "mine.toml")).text_parts() == parts


def test_a_variable_is_a_whole_word(tmp_path):
    (tmp_path / "mine.toml").write_text('system = "The $documentation is below."\nuser = "$document $question"')
    assert load_template(str(tmp_path / "mine.toml")).system == "The $documentation is below."


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text('text = "$document $question"')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert load_template("~/mine.toml").name == "mine"


@pytest.mark.parametrize(
    ("chat", "words"),
    [(None, "has no chat template; use --prompt tiny"), ("{% if %}", "the model's chat template failed")],
)
def test_a_chat_template_that_is_missing_or_fails_is_named(tokenizer, monkeypatch, chat, words):
    monkeypatch.setattr(tokenizer, "chat_template", chat)
    with pytest.raises(SpecprefillError, match=words):
        encode_prompt(load_template("ask"), "x", "y", tokenizer)
