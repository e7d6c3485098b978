"""Processes that the scripts start."""
