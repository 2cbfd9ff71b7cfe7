"""Quality and speed: metrics with intervals, data sets, runs."""
