"""The recipes of the bundled files; `python -m specprefill_cli.training --help` lists the steps."""
