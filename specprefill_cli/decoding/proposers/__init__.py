"""Proposers of tokens that the target verifies: one file a proposer."""

# What `--proposer` takes besides `auto`.
PROPOSERS = ("draft", "lookup")
