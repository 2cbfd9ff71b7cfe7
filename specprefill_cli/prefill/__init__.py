"""From importance to a plan of fates to the target's KV: scorers, selection, sparse prefill, modes."""
