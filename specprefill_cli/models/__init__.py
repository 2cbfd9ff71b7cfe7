"""Named pairs, loading and placing them, their tokenizers, and the adapter to transformers."""
