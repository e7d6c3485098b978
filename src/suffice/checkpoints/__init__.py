"""Checkpoints: models in any storage format, opened, checked, and read one tensor at a time."""
