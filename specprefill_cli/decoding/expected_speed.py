"""What speculative decoding is expected to gain, by acceptance and costs (arXiv 2211.17192)."""

from __future__ import annotations


def expected_tokens(acceptance: float, count: int) -> float:
    """Tokens that a round yields on average when `count` are proposed: equation (1) of arXiv 2211.17192."""
    if acceptance >= 1:
        return count + 1.0
    return (1 - acceptance ** (count + 1)) / (1 - acceptance)


def speedup(acceptance: float, count: int, token_passes: float, target_passes: float = 1.0) -> float:
    """Speed over plain decoding: theorem 3.8 of arXiv 2211.17192, with the true cost of the verifying pass.

    token_passes: cost of one proposed token (the paper's c); target_passes: cost of verifying all of them, which the
    paper equates with that of one token
    """
    return expected_tokens(acceptance, count) / (target_passes + count * token_passes)
