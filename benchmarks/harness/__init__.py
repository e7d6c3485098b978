"""Shared code of the benchmarks: result files, tables, plots, memory bandwidth, settings."""
