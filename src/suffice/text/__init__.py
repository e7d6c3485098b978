"""Text to tokens and back: tokenizers of all formats, chat templates, and their limits."""
