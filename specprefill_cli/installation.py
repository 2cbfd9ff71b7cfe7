"""The `pip install` commands that messages name."""

import sys


def pip_command(*arguments: str) -> str:
    """The `pip install` command line for the current interpreter."""
    return f'"{sys.executable}" -m pip install {" ".join(arguments)}'
