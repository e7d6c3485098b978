"""File formats of models: folders of Hugging Face, GGUF, and quantised files of our own."""
