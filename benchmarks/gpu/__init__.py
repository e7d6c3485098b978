"""Benchmarks of the kernels for GPUs, part by part."""
