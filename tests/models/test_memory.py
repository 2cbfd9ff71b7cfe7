"""The light import of transformers gives the same library."""

import json
import subprocess
import sys

CODE = """
from specprefill_cli.models.machine.memory import import_transformers
import_transformers()
import gc, json
from pathlib import Path
from transformers import models
from transformers.utils import import_utils
folders = sum(path.is_dir() for path in Path(models.__file__).parent.iterdir())
misses = import_utils.create_import_structure_from_path.cache_info().misses
expected = {key: modules for key, modules in import_utils.define_import_structure(models.__file__).items() if modules}
names = {name for modules in expected.values() for module_names in modules.values() for name in module_names}
print(json.dumps([folders, misses, len(names), names <= set(dir(models)), models.llama.__name__, gc.isenabled()]))
"""


def test_every_folder_is_read_once_every_model_is_listed_and_garbage_is_collected_afterwards():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    folders, misses, names, *others = json.loads(result.stdout)
    assert folders > 100
    assert misses < 1.5 * folders
    assert names > 1000
    assert others == [True, "transformers.models.llama", True]
