"""Speed: time to first token by phase, and decoding speed."""
