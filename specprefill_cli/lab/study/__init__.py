"""Where draft KV breaks, and what it wins."""
