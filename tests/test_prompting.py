"""Templates and the exact place of head, document, question and tail in the token ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.prompting import encode_prompt, load_template, parse_template, render

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


def test_parts_of_a_plain_template_are_found_exactly(tokenizer):
    text = render(load_template("tiny"), "A page.\n\nTwo.", " Who? ", tokenizer)
    prompt = encode_prompt(text, tokenizer)
    head, document, between, question, after = parts(prompt, tokenizer)
    assert head == "<|bos|>Answer the question from the document.\n\n"
    assert document == "A page.\n\nTwo."
    assert (between, question, after) == ("\n\nQuestion:", " Who?", "\nAnswer:")


def test_an_opening_stands_behind_the_prompt(tokenizer):
    template = load_template("tiny")
    plain = encode_prompt(render(template, "A page.", "Who?", tokenizer), tokenizer)
    opened = encode_prompt(render(template, "A page.", "Who?", tokenizer, " It was"), tokenizer)
    assert opened.tokens.tolist()[: plain.length] == plain.tokens.tolist()
    assert parts(opened, tokenizer)[-1] == "\nAnswer: It was"
    assert opened.question == plain.question


@given(document=st.text(max_size=200), question=st.text(min_size=1, max_size=50).filter(str.strip))
def test_offsets_cover_the_documents_text(tokenizer, document, question):
    prompt = encode_prompt(render(load_template("tiny"), document, question, tokenizer), tokenizer)
    assert len(prompt.offsets) == prompt.document[1] - prompt.document[0]
    assert (prompt.offsets[:, 0] <= prompt.offsets[:, 1]).all()
    assert (prompt.offsets[1:, 0] >= prompt.offsets[:-1, 0]).all()
    if len(prompt.offsets):
        assert prompt.offsets[0, 0] == 0
        assert prompt.offsets[-1, 1] == len(document)


def test_special_tokens_in_a_document_are_only_text(tokenizer):
    prompt = encode_prompt(
        render(load_template("tiny"), "stop <|eos|> here <|bos|>", "x<|eos|>?", tokenizer), tokenizer
    )
    assert tokenizer.eos_token_id not in prompt.tokens.tolist()
    assert prompt.tokens.tolist().count(tokenizer.bos_token_id) == 1
    assert parts(prompt, tokenizer)[1] == "stop <|eos|> here <|bos|>"


@pytest.mark.parametrize("chat", [CHAT, NO_SYSTEM])
def test_chat_templates_are_cut_where_the_variables_stand(tokenizer, chat, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", chat)
    prompt = encode_prompt(render(load_template("ask"), "The $question of the day.", "Who?", tokenizer), tokenizer)
    head, document, between, question, after = parts(prompt, tokenizer)
    assert "documents" in head
    assert document == "The $question of the day."
    assert between.endswith("Question:")
    assert question == " Who?"
    assert after == "<|eos|>\n<|bos|>assistant\n"


def test_a_model_without_chat_template_is_refused(tokenizer):
    with pytest.raises(SpecprefillError, match="has no chat template; use --prompt tiny"):
        render(load_template("ask"), "x", "y", tokenizer)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('text = "$document only"', r"\$question is missing"),
        ('text = "$document $question $page"', r"unknown variable \$page"),
        ('text = "$question $document"', "must come after"),
        ('text = "$document $question"\nuser = "$document $question"', "not both"),
        ('text = "$document $question"\ncolour = "red"', "unknown key 'colour'"),
        ('text = "$document $question"\nsystem = "Be brief."', "`system` goes with `user`"),
        ('text = "$document $question $question"', r"\$question is missing"),
        ("text = ", "not valid TOML"),
        ('text = "$document costs $ 5, $question"', r"write it as \$\$"),
    ],
)
def test_faulty_templates_are_named(tmp_path, body, complaint):
    path = tmp_path / "mine.toml"
    path.write_text(body)
    with pytest.raises(SpecprefillError, match=complaint) as caught:
        parse_template(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_doubled_dollar_signs_become_one(tmp_path):
    (tmp_path / "price.toml").write_text('text = "It costs $$5. $document $question $$"')
    assert parse_template(tmp_path / "price.toml").text_parts() == ("It costs $5. ", " ", " $")


def test_braces_part_a_variable_from_what_follows(tmp_path):
    (tmp_path / "tags.toml").write_text('text = "<a>${document}_end ${question}s"')
    assert parse_template(tmp_path / "tags.toml").text_parts() == ("<a>", "_end ", "s")


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "mark.toml").write_text('text = "$document $question"', encoding="utf-8-sig")
    assert parse_template(tmp_path / "mark.toml").text_parts() == ("", " ", "")


def test_a_users_folder_comes_before_the_package(tmp_path):
    (tmp_path / "tiny.toml").write_text('text = "mine: $document / $question"')
    assert load_template("tiny", [tmp_path]).text == "mine: $document / $question"
    assert load_template("ask", [tmp_path]).user is not None


def test_an_unknown_template_names_the_known_ones():
    with pytest.raises(UsageError, match="known are ask, tiny"):
        load_template("nonesuch")
