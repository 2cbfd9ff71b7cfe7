"""Packaged files (prompts, samples, the bundled pair), modules that must not import torch, and import cycles."""

import json
import shlex
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

import specprefill_cli
from specprefill_cli.documents.collect import read_documents
from specprefill_cli.errors import pip_command
from specprefill_cli.files import packaged_folder

ROOT = Path(specprefill_cli.__file__).resolve().parent.parent
LIGHT = (
    "documents settings errors models.sources.pairs __main__ reporting.html cli.options files diagnostics "
    "documents.cleaning engine.http record batching.ray_engine cli.batch".split()
)


IMPORTS = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(f"specprefill_cli.{module}")
    heavy = {"torch", "transformers", "ray", "pypdf", "charset_normalizer"} & {*sys.modules}
    assert not heavy, f"{module} imports {heavy}"
"""


def test_light_modules_load_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", IMPORTS, *LIGHT], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


def test_no_modules_import_each_other_not_even_for_annotations():
    graph = grimp.build_graph("specprefill_cli", exclude_type_checking_imports=False)
    assert len(graph.modules) > 100
    # Raises CycleError, which names the modules.
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_install_commands_name_this_interpreter_and_survive_a_shell(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my tools/python")
    command = pip_command("--upgrade", "ray")
    assert shlex.split(command) == ["/my tools/python", "-m", "pip", "install", "--upgrade", "ray"]


def test_wheel_includes_prompts_and_samples():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {name: f"specprefill_cli/_data/{name}" for name in ("prompts", "sample_docs")}
    assert all((ROOT / name).is_dir() for name in included)


def test_bundled_pair_is_at_most_32_mib():
    folder = ROOT / "specprefill_cli" / "bundled" / "tiny"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 32 * 2**20


def test_sample_answers_appear_on_their_stated_pages():
    folder = packaged_folder("sample_docs")
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 30
    assert sum(not row["answers"] for row in rows) == 5
    for row in rows:
        (document,) = read_documents([str(folder / name) for name in row["documents"]])
        pages = {page.number: " ".join(document.text[page.start : page.end].split()) for page in document.pages}
        for answer in row["answers"]:
            assert all(answer in pages[number] for number in row["pages"]), row["id"]
