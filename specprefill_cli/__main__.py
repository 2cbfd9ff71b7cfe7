"""The command `specprefill`, also as `python -m specprefill_cli`: handed to a running server, or run here."""

from __future__ import annotations

import sys

from specprefill_cli.serving.client import forwarded


def main() -> None:
    """Run a command line and exit."""
    code = forwarded(sys.argv[1:])
    if code is not None:
        sys.exit(code)
    from specprefill_cli.cli.main import main as run_here

    run_here()


if __name__ == "__main__":
    main()
