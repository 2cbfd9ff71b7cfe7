"""Documents and question on the command line: errors name the missing one."""

import pytest

QUESTION = "What is the fee?"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "report.txt").write_text("The fee is 3 euros. " * 30)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["ask", "passages", "plan"])
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("report.txt",), "question is"),
        (("absent.pdf",), "question is"),
        ((QUESTION,), "documents are"),
        ((), "question is"),
    ],
)
def test_a_missing_argument_is_named_with_an_example(call, folder, command, arguments, missing):
    code, out, err = call(command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"specprefill: {command}: the {missing} missing; for example: specprefill {command} report.pdf "
    )
    assert len(err.splitlines()) == 1


def test_the_question_is_read_from_standard_input(call, folder):
    code, piped, _ = call("ask", "report.txt", "-", "--quiet", stdin=f"{QUESTION}\n".encode())
    assert (code, piped) == (0, call("ask", "report.txt", QUESTION, "--quiet")[1])


@pytest.mark.parametrize(
    ("documents", "stdin", "words"),
    [("-", b"Who?", "cannot be both a document and the question"), ("report.txt", b" \n", "the question is empty")],
)
def test_rejects_standard_input_that_is_no_question(call, folder, documents, stdin, words):
    code, _, err = call("ask", documents, "-", stdin=stdin)
    assert code == 2
    assert words in err


def test_an_unknown_option_is_still_named(call, folder):
    code, _, err = call("ask", "--kep", "0.2", "report.txt", QUESTION)
    assert code == 2
    assert "No such option: --kep" in err
