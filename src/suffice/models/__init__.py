"""Models: checkpoints of many families, loaded into one decoder, and their tokenizers."""
