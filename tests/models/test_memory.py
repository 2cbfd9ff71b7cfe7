"""The light import of transformers gives the same library."""

import subprocess
import sys

PRELUDE = """
from specprefill_cli.models.memory import import_transformers
import_transformers()
from pathlib import Path
from transformers import models
from transformers.utils import import_utils
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=True).stdout


def test_every_model_is_listed_as_transformers_lists_it():
    code = """
expected = {key: modules for key, modules in import_utils.define_import_structure(models.__file__).items() if modules}
names = {name for modules in expected.values() for module_names in modules.values() for name in module_names}
print(names <= set(dir(models)), len(names) > 1000, models.llama.__name__)
"""
    assert run(code).split() == ["True", "True", "transformers.models.llama"]


def test_the_folders_of_the_models_are_read_once():
    code = """
folders = sum(path.is_dir() for path in Path(models.__file__).parent.iterdir())
print(folders > 100, import_utils.create_import_structure_from_path.cache_info().misses < 1.5 * folders)
"""
    assert run(code).split() == ["True", "True"]


def test_garbage_is_collected_afterwards():
    assert run("import gc; print(gc.isenabled())").strip() == "True"
