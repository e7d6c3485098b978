"""File formats of models: Hugging Face folders, GGUF, and our own quantized files."""
