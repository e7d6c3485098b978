"""KLLM: matmuls on k-means indices by counting pairs, and a unit that finds outliers."""
