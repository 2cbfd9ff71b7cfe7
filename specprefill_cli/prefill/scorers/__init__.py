"""Scorers of document tokens: a file for each."""
