"""What attention sees, straight from the definition."""

import torch

from specprefill_cli.models.running.attention_plan import SINKS


def visibility(queries, keys, window=None, local_window=None):
    """Which keys each query sees [Q, K] (boolean), by positions. window: the layer's; local_window: the pass's."""
    distance = queries[:, None] - keys[None]
    seen = distance >= 0
    near = distance < window if window is not None else torch.ones_like(seen)
    if local_window is not None and (window is None or local_window.size < window):
        limited = (queries < local_window.until)[:, None]
        inside = (distance < local_window.size) | (torch.arange(len(keys)) < SINKS)[None]
        near = torch.where(limited, inside, near)
    return seen & near
