"""KLLM: products of k-means indices by counting, and an engine that finds outliers."""
