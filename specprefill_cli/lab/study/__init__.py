"""The draft-KV study: where draft KV is wrong in the target, which signals predict it, and what it gains."""
