"""The light import of transformers gives the same library."""

import json
import subprocess
import sys

import pytest

CODE = """
from specprefill_cli.models.machine.process import import_transformers
import gc, json, sys
import_transformers(int(sys.argv[1]))
from pathlib import Path
from transformers import models
from transformers.utils import import_utils
folders = sum(path.is_dir() for path in Path(models.__file__).parent.iterdir())
misses = import_utils.create_import_structure_from_path.cache_info().misses
expected = {key: modules for key, modules in import_utils.define_import_structure(models.__file__).items() if modules}
names = {name for modules in expected.values() for module_names in modules.values() for name in module_names}
costly = sorted({'sympy', 'torch._dynamo', 'torch.distributed.tensor'} & {*sys.modules})
import torch._dynamo
assert torch._dynamo.allow_in_graph.__name__ == 'allow_in_graph'
is_distributed = import_utils.is_torch_distributed_available()
listed, name = names <= set(dir(models)), models.llama.__name__
print(json.dumps([folders, misses, len(names), listed, name, gc.isenabled(), costly, is_distributed]))
"""


@pytest.mark.parametrize(("tensor_parallel", "costly"), [(1, []), (2, ["sympy", "torch.distributed.tensor"])])
def test_no_folder_is_read_twice_no_model_is_lost_and_the_compiler_comes_when_it_is_asked_for(tensor_parallel, costly):
    command = [sys.executable, "-c", CODE, str(tensor_parallel)]
    folders, misses, names, *others = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert folders > 100
    assert misses < 1.5 * folders
    assert names > 1000
    assert others == [True, "transformers.models.llama", True, costly, bool(costly)]
