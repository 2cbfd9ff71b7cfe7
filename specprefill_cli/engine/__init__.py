"""Engines turn a request into events; `local` runs the models in this process."""
