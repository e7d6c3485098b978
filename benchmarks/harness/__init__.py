"""What the benchmarks share: result files, tables, plots, the memory's bandwidth, settings."""
