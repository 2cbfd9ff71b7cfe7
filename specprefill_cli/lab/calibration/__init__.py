"""Fitting what a pair must learn about itself once: scoring heads, draft-KV maps, the keep-auto mass."""
