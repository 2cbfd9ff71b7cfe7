"""Hints that a user is given once."""

from __future__ import annotations

from specprefill_cli.settings import config_path


def first_time(hint: str) -> bool:
    """Whether a hint was never given on this account; from now on it was. False where that cannot be recorded."""
    marker = config_path().parent / f"{hint}.seen"
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)
    except OSError:
        return False
    return True
