"""suffice and other engines on the same model: decode, batch and prompt speed."""
