"""Modes of prefill: one file a mode."""
