"""Processes ("ranks") that share a target model by tensor parallelism."""
