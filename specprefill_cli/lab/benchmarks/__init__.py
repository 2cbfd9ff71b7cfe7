"""Speed: time to first token by phase, as ratios measured in one run."""
