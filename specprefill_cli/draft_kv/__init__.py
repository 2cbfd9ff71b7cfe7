"""Draft KV: the target accepts keys and values mapped from the draft's states. It registers like a plugin."""
