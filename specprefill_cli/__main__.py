"""`python -m specprefill_cli` is `specprefill`."""

from specprefill_cli.cli.main import main

if __name__ == "__main__":
    main()
