"""The registry of scorers, by name."""

from collections.abc import Mapping

from specprefill_cli.prefill.scorers.base import Scorer
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.scorers.lexical import LexicalScorer
from specprefill_cli.prefill.scorers.paper import PaperScorer
from specprefill_cli.prefill.scorers.question import QuestionScorer
from specprefill_cli.prefill.scorers.random import RandomScorer

SCORERS: Mapping[str, Scorer] = {
    scorer.name: scorer for scorer in (QuestionScorer(), HeadsScorer(), PaperScorer(), LexicalScorer(), RandomScorer())
}
