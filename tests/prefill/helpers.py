"""Sessions of the tests of prefill: with caches, with a shorter context, with other heads."""

from dataclasses import replace

from specprefill_cli.prefill.calibration import Head, ScoringHeads, model_identity
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache


def caching(session, **options):
    """The session with empty caches. options: of the draft's."""
    return session.with_cache(DocumentCache(draft=PrefixCache(**options)))


def shorten_context(session, draft, target=None):
    pair = session.pair
    models = {"draft": replace(pair.draft, context=draft), "target": replace(pair.target, context=target or draft)}
    return replace(session, pair=replace(pair, **models))


def make_heads(draft, *heads, default=True):
    """Scoring heads from (layer, head, weight)."""
    heads = tuple(Head(*head) for head in heads)
    return ScoringHeads(heads=heads, auto_mass=0.7, default=default, evidence={}, **model_identity(draft))
