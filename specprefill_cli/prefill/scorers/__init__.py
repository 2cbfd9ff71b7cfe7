"""Scorers of document tokens: one file a scorer."""
