"""Heads that draft for a model, trained on the model's own answers."""
