"""The recipe of the bundled pair `tiny`: corpus, tokenizer, training, export.

`python -m specprefill_cli.training --help` lists the steps in their order.
"""
