"""Models: checkpoints of many families read into the one decoder, and their tokenizers."""
