"""Calibration fits scoring heads, draft-KV maps, and the importance mass of `--keep auto` to a pair."""
