"""Scrooge: an accelerator with early termination of attention, and a baseline without it."""
