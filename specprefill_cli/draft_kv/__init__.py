"""Draft KV: the target accepts keys and values mapped from the draft's states."""
