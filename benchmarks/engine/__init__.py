"""Measures what the engine adds to its decode steps."""
