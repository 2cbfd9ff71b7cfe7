"""The documentation checked against the code: links, paths, commands, JSON keys, sizes, the glossary, and the examples."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer

import specprefill_cli
from specprefill_cli.__main__ import command_line
from tests.helpers.samples import HANDBOOK

COMMANDS = typer.main.get_command(command_line())
ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
# A call starts a line, or follows a pipe, an assignment or the start of a command substitution.
CALL = re.compile(r"(?:^|[\s(])specprefill ([^|<>;)]*)")
# Models, servers, processes and question sets that are not here, what takes long, and names to be replaced.
NOT_HERE = re.compile(
    r"qwen|https?:|\./|\bserve\b|--tensor-parallel|--workers|--ray|calibrate|study|bench|squad|scorer mine|[A-Z]{4,}"
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
CODE_PATH = re.compile(r"`((?:specprefill_cli|tests|docs|prompts|sample_docs)/[\w./-]+)`")


def read(page):
    return page.read_text(encoding="utf-8")


def commands(page):
    """Return the arguments of each `specprefill` call in the page's shell blocks and inline code."""
    lines = shell_lines(page)
    inline = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`(specprefill [^`]*)`", inline)]
    return [match[1].strip() for line in lines for match in CALL.finditer(line)]


def shell_lines(page):
    """Return the lines of the page's shell blocks, joined where they go on, without comments."""
    return [
        line
        for block in re.findall(r"```sh\n(.*?)```", read(page), re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if not line.lstrip().startswith("#")
    ]


def runnable_calls():
    """Return the calls in shell blocks that run on this machine with the bundled pair: one for each set of options."""
    calls = [match[1].strip() for page in PAGES for line in shell_lines(page) for match in CALL.finditer(line)]
    calls = [call.replace("$question", "What is the fee?") for call in calls if not NOT_HERE.search(call)]
    distinct = {}
    for words in (shlex.split(call, comments=True) for call in calls):
        command = words[:2] if words[0] == "config" else words[:1]
        distinct.setdefault((*command, *sorted(word for word in words if word.startswith("-"))), shlex.join(words))
    return list(distinct.values())


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A working directory with the files that the documentation names, and a config file."""
    for name in ("report.pdf", "text.pdf", "contracts/a.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(HANDBOOK, tmp_path / name)
    for name in ("notes.md", "docs/lease.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("The lease was signed by Ada Birch. The fee is 42 euros. The audit is in May.\n")
    row = {"id": "1", "question": "What is the fee?", "answers": ["42 euros"], "documents": ["notes.md"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "answers": None}) + "\n")
    (tmp_path / "sample_docs").mkdir()
    (tmp_path / "sample_docs" / "questions.jsonl").write_text(json.dumps({**row, "documents": ["../notes.md"]}) + "\n")
    (tmp_path / "config.toml").write_text("keep = 0.3\n")
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)
    return json.dumps({**row, "answers": None}).encode() + b"\n"


def heading_anchors(text):
    """Return the anchors that GitHub generates for a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_point_to_existing_files_and_headings(page):
    for target, anchor in LINK.findall(read(page)):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or anchor in heading_anchors(read(path)), target + anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_inline_code_exist(page):
    assert [name for name in CODE_PATH.findall(read(page)) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page):
    for call in commands(page):
        # Shell variables stay unexpanded; shlex only splits the call into words.
        words = shlex.split(call.replace("...", ""), comments=True)
        command = COMMANDS
        options = {"--install-completion", "--help"}
        while words and words[0] in getattr(command, "commands", {}):
            options |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            command = command.commands[words.pop(0)]
        assert command.name != "specprefill" or not words or words[0].startswith("--"), call
        options |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options, call


@pytest.mark.slow
@pytest.mark.parametrize("shown", runnable_calls())
def test_commands_that_can_run_here_succeed(shown, call, desk):
    words = shlex.split(shown)
    lines = {"batch": desk, "compare": b"What is the fee?\n"}
    code, out, err = call(*words, stdin=lines.get(words[0], b"The fee is 42 euros.\n"))
    assert code == 0, err
    assert out or err or words[:2] == ["config", "unset"]


def test_pages_are_linked_from_the_readme():
    linked = {Path(target).name for target, _ in LINK.findall(read(ROOT / "README.md"))}
    assert {page.name for page in PAGES} - {"README.md"} <= linked


def test_every_answer_key_is_documented(call_json):
    record = call_json("ask", HANDBOOK, "What mileage allowance does the company pay?")
    table = read(ROOT / "docs" / "pipes.md").split("<!-- keys of an answer -->")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    assert set(rows) == set(record)
    for name in ("pair", "phases", "spans", "speculation", "citations"):
        nested = record[name][0] if isinstance(record[name], list) else record[name]
        assert [key for key in nested if f"`{key}`" not in rows[name]] == []


def test_python_example_runs(monkeypatch, capsys):
    (example,) = re.findall(
        r"<!-- runnable example -->\n```python\n(.*?)```", read(ROOT / "docs" / "python.md"), re.DOTALL
    )
    monkeypatch.chdir(ROOT)
    exec(compile(example, "docs/python.md", "exec"), {"__name__": "example"})
    answer, measured, citation, refusal = capsys.readouterr().out.splitlines()
    assert answer == "42 pence"
    assert measured.startswith("mode select, kept 3%")
    assert "page 8" in citation
    assert refusal.startswith("refused: ")


def test_the_pages_are_at_most_90_kib():
    pages = [page for page in PAGES if page.parent.name == "docs" and page.name != "reference.md"]
    assert sum(page.stat().st_size for page in pages) <= 90 * 1024


def test_the_glossary_has_at_most_30_terms():
    table = read(ROOT / "docs" / "guide.md").split("## Glossary")[1].split("\n## ")[0]
    assert 10 < len(re.findall(r"^\| (?!term|---)", table, re.MULTILINE)) <= 30
