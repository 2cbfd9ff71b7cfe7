"""The light import of transformers gives the same library."""

import json
import subprocess
import sys

CODE = """
from specprefill_cli.models.machine.imports import import_transformers
import_transformers(1)
import gc, json, sys
from pathlib import Path
from transformers import models
from transformers.utils import import_utils
folders = sum(path.is_dir() for path in Path(models.__file__).parent.iterdir())
misses = import_utils.create_import_structure_from_path.cache_info().misses
expected = {key: modules for key, modules in import_utils.define_import_structure(models.__file__).items() if modules}
names = {name for modules in expected.values() for module_names in modules.values() for name in module_names}
compiler = {'sympy', 'torch._dynamo', 'torch.distributed.tensor'} & {*sys.modules}
import torch._dynamo
compiler |= {torch._dynamo.allow_in_graph.__name__} - {'allow_in_graph'}
print(json.dumps([folders, misses, len(names), names <= set(dir(models)), models.llama.__name__, gc.isenabled(), [*compiler]]))
"""


def test_no_folder_is_read_twice_no_model_is_lost_and_the_compiler_comes_when_it_is_asked_for():
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    folders, misses, names, *others = json.loads(result.stdout)
    assert folders > 100
    assert misses < 1.5 * folders
    assert names > 1000
    assert others == [True, "transformers.models.llama", True, []]
