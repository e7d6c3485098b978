"""The decoder: configuration, families, blocks, rotations, packed weights and native steps."""
