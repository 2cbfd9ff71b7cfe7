"""Draft KV: the target accepts keys and values mapped from the draft's states. Registered as a plugin would be."""
