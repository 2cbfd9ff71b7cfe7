"""Processes that share one target model (tensor parallel)."""
