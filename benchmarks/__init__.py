"""Scripts that measure suffice, a folder for each topic: `python -m benchmarks` lists them."""
