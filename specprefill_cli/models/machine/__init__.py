"""Where a model runs: devices, memory, dtype, quantisation, and what a pass costs."""
