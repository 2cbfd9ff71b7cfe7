"""From logits to text: sampling, and streaming without broken characters."""
