"""Which model: names, hub, GGUF files, adapters, and tokenizers."""
