"""The command `specprefill`, also as `python -m specprefill_cli`."""

from __future__ import annotations

from specprefill_cli.cli.main import main

if __name__ == "__main__":
    main()
