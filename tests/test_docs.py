"""The documentation checked against the code: links, paths, commands, JSON keys, and the Python API example."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

import specprefill_cli
from specprefill_cli.cli.main import command_line

ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
# A call starts a line, or follows a pipe, an assignment or the start of a command substitution.
CALL = re.compile(r"(?:^|[\s(])specprefill ([^|<>)]*)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
CODE_PATH = re.compile(r"`((?:specprefill_cli|tests|docs|prompts|sample_docs)/[\w./-]+)`")


def read(page):
    return page.read_text(encoding="utf-8")


def commands(page):
    """Return the arguments of each `specprefill` call in the page's shell blocks and inline code."""
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", read(page), re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if not line.lstrip().startswith("#")
    ]
    inline = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`(specprefill [^`]*)`", inline)]
    return [match[1].strip() for line in lines for match in CALL.finditer(line)]


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


@pytest.mark.parametrize(("page", "call"), [(page.name, call) for page in PAGES for call in commands(page)])
def test_commands_and_their_options_exist(page, call):
    # Shell variables stay unexpanded; shlex only splits the call into words.
    words = shlex.split(call.replace("...", ""), comments=True)
    command = typer.main.get_command(command_line())
    options = {"--install-completion", "--help"}
    while words and words[0] in getattr(command, "commands", {}):
        options |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        command = command.commands[words.pop(0)]
    assert command.name != "specprefill" or not words or words[0].startswith("--"), call
    options |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options


def test_pages_contain_shell_commands():
    assert len(commands(ROOT / "README.md")) > 10
    assert len(commands(ROOT / "docs" / "pipes.md")) > 10


def test_pages_are_linked_from_the_readme():
    linked = {Path(target).name for target, _ in LINK.findall(read(ROOT / "README.md"))}
    assert {page.name for page in PAGES} - {"README.md"} <= linked


def test_every_answer_key_is_documented(call):
    handbook = str(ROOT / "sample_docs" / "harbour-handbook.pdf")
    code, out, _ = call("ask", handbook, "What mileage allowance does the company pay?", "--json")
    assert code == 0
    table = read(ROOT / "docs" / "pipes.md").split("<!-- keys of an answer -->")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    record = json.loads(out)
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
