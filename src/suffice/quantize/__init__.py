"""Quantizing a model: the job, the inputs of a layer, and the sensitivity of a layer."""
