"""Questions about a whole document, which the bundled pair cannot answer: it copies short spans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specprefill_cli.answering.passages import Passage

OVERVIEW = re.compile(
    r"\s*(?:(?:please|can you|could you|would you)\s+)*"
    r"(?:summari[sz]e\b|tl;?dr\b|outline\b|describe (?:this|the) (?:document|text|file|report|article|book|paper)\b"
    r"|(?:give|write|provide|make)\b.{0,20}\b(?:summary|overview|outline)\b"
    r"|what(?:'s|\u2019s| is| are) (?:this|it|that|these|the (?:document|text|file|report|article|book|paper|page)s?)"
    r"(?: (?:document|text|file|report|article|book|paper|page)s?)? (?:all )?about\b"
    r"|what(?:'s|\u2019s| is| are) the (?:main|key) (?:point|idea|topic|theme|finding|takeaway|message)s?\b"
    r"|list (?:all|every|each)\b|name (?:all|every)\b)",
    re.IGNORECASE,
)
# Passages that stand in for a summary.
OVERVIEW_PASSAGES = 3
OVERVIEW_WARNING = (
    "the bundled pair answers with short quotes and can neither summarise nor list: these are the passages that fit best; "
    "a larger pair can, for example --pair qwen2.5-1.5b"
)


def asks_for_overview(question: str) -> bool:
    """Whether a question asks for a summary or a complete list."""
    return OVERVIEW.match(question) is not None


def overview_text(passages: Sequence[Passage]) -> str:
    """The passages as an answer, each on a line of its own."""
    return "\n".join(" ".join(passage.text.split()) for passage in passages)
