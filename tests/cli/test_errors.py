"""Errors are one line on standard error, with their exit code, and nothing is loaded before wrong usage is found."""

import shlex

import pytest

from specprefill_cli.files import packaged_folder
from tests.helpers.samples import HANDBOOK

ENDPOINT = "http://localhost:1/v1#m"
EXAMPLE = "missing; for example: specprefill"


@pytest.fixture
def bad_inputs(tmp_path, monkeypatch):
    """The current directory, with documents that cannot be read and others."""
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_RUNTIME_DIR", "SPECPREFILL_CALIBRATION"):
        monkeypatch.setenv(variable, str(tmp_path))
    files = {
        "named.pdf": b"\x89PNG\r\n\x1a\nrest",
        "report.txt": b"The fee is 3 euros. " * 30,
        "questions.jsonl": b'{"documents": ["report.txt"], "question": "What is the fee?", "answers": ["3 euros"]}',
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    return tmp_path


def check_error(call, line, code, words, stdin=b""):
    arguments = [{"HANDBOOK": HANDBOOK, "ENDPOINT": ENDPOINT}.get(part, part) for part in shlex.split(line)]
    exit_code, out, err = call(*arguments, stdin=stdin)
    assert (exit_code, out) == (code, ""), err
    assert len(err.splitlines()) == 1
    assert err.startswith("specprefill: ")
    assert words in err


@pytest.mark.parametrize(("line", "words"), [
    ("ask named.pdf Who?", "not a .pdf file"), ("ask missing.pdf Who?", "missing.pdf"), ("ask - Who?", "stdin"),
    ("passages missing.pdf Who?", "missing.pdf: cannot be read"), ("ask '' Who?", "not a file name"),
    ("ask HANDBOOK Who? --max-new-tokens 16380", "does not fit tiny:target's context of 16,384"),
    ("ask HANDBOOK Who? --target some/model", "some/model: not in the model cache"),
    ("ask HANDBOOK Who? --target ./absent", "./absent: no such folder, and no name on the hub; check the path"),
    ("ask HANDBOOK Who? --target absent.gguf", "absent.gguf: no such file; give the path of a GGUF file"),
    ("ask HANDBOOK Who? --adapter some/adapter", "some/adapter: not in the model cache"),
    ("ask HANDBOOK Who? --quantization nf4 --devices cpu", "nf4 needs a CUDA device"),
    ("batch --document nothing.pdf", "nothing.pdf"),
    ("batch --out nowhere/out.jsonl", "nowhere/out.jsonl: cannot be written"),
    ("evaluate questions.jsonl --against report.txt", "--against report.txt: not a file of answers"),
])  # fmt: skip
def test_failures_are_one_line_and_exit_with_1(call, bad_inputs, line, words):
    check_error(call, line, 1, words)


@pytest.mark.parametrize(("line", "words"), [
    ("ask report.txt", f"specprefill: ask: the question is {EXAMPLE} ask report.pdf "),
    ("passages absent.pdf", f"specprefill: passages: the question is {EXAMPLE} passages report.pdf "),
    ("plan 'What is the fee?'", f"specprefill: plan: the documents are {EXAMPLE} plan report.pdf "),
    ("ask HANDBOOK '  '", "question is empty"), ("ask - -", "cannot be both a document and the question"),
    ("ask report.txt -", "the question is empty"), ("ask HANDBOOK report.txt", "give the question last"),
    ("ask HANDBOOK Who? --mode fast", "--mode fast: unknown; use one of auto, full, select"),
    ("ask HANDBOOK Who? --pair giant", "--pair giant: unknown; use one of auto, tiny"),
    ("ask HANDBOOK Who? --prompt nonesuch", "'nonesuch': no such template; known are ask, smollm2, smollm2-full, tiny"),
    ("ask HANDBOOK Who? --devices cuda:99", "cuda:99"),
    ("ask HANDBOOK Who? --confirm --temperature 0.7", "--confirm: a sampled answer"),
    ("ask HANDBOOK Who? --confirm --target ENDPOINT", "--confirm: an endpoint takes text only"),
    ("ask HANDBOOK Who? --html none/a.html", "the folder"),
    ("ask HANDBOOK Who? --html .", "this is a folder; give a file name"),
    ("ask report.txt Who? --html report.txt", "this is one of the documents"),
    ("compare HANDBOOK --json", "--json and --html need a question"),
    ("compare -", "standard input cannot be a document here"),
    ("compare HANDBOOK Who? --modes fast", "--modes fast: unknown"),
    ("compare HANDBOOK Who? --modes ,", "--modes: empty; give one value"),
    ("batch --resume", "--resume and --retry-failed need --out"), ("batch --retry-failed", "--retry-failed need --out"),
    ("batch - --document -", "standard input cannot be both"),
    ("passages report.txt Who? --top 2 --keep 0.2", "--top 2: replaces the share of --keep; leave out one of them"),
    ("batch --ray ray://head:10001", "--ray ray://head:10001: give auto"),
    ("batch --workers 2 --mode fast --document HANDBOOK", "--mode fast"),
    ("batch report.txt --document HANDBOOK --resume --out report.txt", "this is the file of questions"),
    ("evaluate report.txt --answers report.txt", "this is the file of questions"),
    ("evaluate questions.jsonl --distractors 2", "leave it out"),
    ("evaluate questions.jsonl --against questions.jsonl --confirm", "leave out --confirm"),
    ("evaluate questions.jsonl --confirm --scorer blend,heads", "give --scorer one name"),
    ("evaluate questions.jsonl --pair qwen2.5-coder-1.5b --scorer paper,heads", "need different drafts"),
    ("bench recall questions.jsonl --pair qwen2.5-coder-1.5b --scorer blend,paper", "need different drafts"),
    ("study questions.jsonl --out questions.jsonl/o", "cannot be made"),
    ("calibrate --heads questions.jsonl --out questions.jsonl", "questions.jsonl: cannot be made"),
    ("bench decode --tasks poem", "--tasks poem: unknown; use some of quote, short"),
    ("bench prefill --shapes tiny:tiny --quantization int8", "--quantization needs a checkpoint"),
    ("bench prefill --plot missing/a.svg", "--plot missing/a.svg: the folder missing does not exist; create it"),
    ("bench prefill --plot a.svg --modes select", "--modes must have full and another mode"),
    ("bench throughput --concurrency 1,0", "--concurrency 0: not a whole number of at least 1"),
    ("bench throughput --server --keep 0.1", "give it only --clients and --seconds"),
    ("plan HANDBOOK Who? --target ENDPOINT", "an endpoint has no weights here"),
    ("batch - --document HANDBOOK --workers 2 --target ENDPOINT", "give --concurrency N"),
    ("ask HANDBOOK Who? --adapter a/b --target ENDPOINT", "--adapter a/b"),
    ("serve --upstream http://localhost:1/v1", "--http"),
    ("serve --upstream http://localhost:1/v1 --http 127.0.0.1:0 x.pdf", "no documents"),
    ("serve --upstream localhost:1 --http 127.0.0.1:0", "--upstream localhost:1: names no host"),
    ("serve --upstream http://a:k@host/v1 --http 127.0.0.1:0", "--upstream: an address with a user"),
    ("serve --http 127.0.0.1:0 --allow-origin http://page.example/", "--allow-origin http://page.example/: no origin"),
    ("bench prefill --llama-cpp", "tiny:target is no GGUF file"),
    ("bench prefill --llama-cpp --shapes tiny:tiny", "leave out --shapes"),
])  # fmt: skip
def test_wrong_usage_is_one_line_and_exits_with_2(call, bad_inputs, monkeypatch, line, words):
    monkeypatch.setattr("specprefill_cli.models.loading.load_model", None)
    before = {path: path.read_bytes() for path in bad_inputs.iterdir() if path.is_file()}
    check_error(call, line, 2, words)
    assert before == {path: path.read_bytes() for path in bad_inputs.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "command", ["compare HANDBOOK Who?", "evaluate QUESTIONS", "bench prefill", "bench decode", "doctor"]
)
def test_commands_that_load_a_target_honour_quantization(call, command):
    line = command.replace("HANDBOOK", HANDBOOK)
    line = line.replace("QUESTIONS", str(packaged_folder("sample_docs") / "questions.jsonl"))
    code, out, err = call(*shlex.split(line), "--quantization", "nf4", "--devices", "cpu")
    assert code == 1
    assert "--quantization nf4 needs a CUDA device" in " ".join((out + err).split())
    assert "Traceback" not in err


@pytest.mark.parametrize(("line", "code", "words"), [
    ("bench decode --tasks quote --length 60", 2, "--length"), ("bench throughput --server", 1, "no server is running"),
])  # fmt: skip
def test_a_quote_needs_a_longer_prompt_and_a_load_a_server(call, line, code, words):
    check_error(call, line, code, words)


@pytest.mark.parametrize(("line", "words"), [("batch a.jsonl", "a.jsonl"), ("ask --kep 1", "No such option: --kep")])
def test_a_missing_file_of_questions_and_an_unknown_option_are_named(call, line, words):
    code, _, err = call(*line.split())
    assert (code, words in err) == (2, True)


def test_debug_shows_the_traceback_and_keeps_the_exit_code(call):
    code, _, err = call("--debug", "ask", HANDBOOK, "Who?", "--keep", "7")
    assert (code, "Traceback" in err, err.strip().splitlines()[-1][:12]) == (2, True, "specprefill:")
