"""Quantizing a model: the job, what a layer sees, and how sensitive a layer is."""
