"""How a pass runs: attention by position, the cache, and passes of one or several sequences."""
