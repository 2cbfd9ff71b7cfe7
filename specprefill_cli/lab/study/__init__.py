"""The draft-KV study: where the draft's KV is wrong in the target, what predicts it, and what it is worth."""
