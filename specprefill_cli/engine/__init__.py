"""Engines: a request in, events out; `local` runs the models in this process."""
