"""How an answer is decoded: the settings of one answer with `auto` resolved where it can be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Sampling and speculation.

    speculate: `off`, `auto` (adapts to measured costs while decoding), or tokens proposed per round
    proposer: `auto`, `draft` or `lookup`
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    speculate: str | int
    proposer: str
