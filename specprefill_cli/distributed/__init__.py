"""Processes ("ranks") that share one target model by tensor parallelism."""
