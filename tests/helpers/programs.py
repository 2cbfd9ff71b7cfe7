"""The program in a process of its own."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

REPORT_AT_EXIT = """
import atexit, json, os, sys
sys.argv[0] = "specprefill"
from specprefill_cli.__main__ import main
atexit.register(lambda: print(json.dumps([sorted(sys.modules), dict(os.environ)]), file=sys.stderr))
main()
"""


def run_main(*arguments, environment=os.environ):
    """Run `specprefill ARGUMENTS`, which must succeed; return what it printed, its modules and environment at exit."""
    command = [sys.executable, "-c", REPORT_AT_EXIT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *lines, report = done.stderr.splitlines(keepends=True)
    modules, variables = json.loads(report)
    return SimpleNamespace(out=done.stdout, err="".join(lines), modules=set(modules), environment=variables)
