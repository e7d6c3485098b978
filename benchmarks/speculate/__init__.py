"""Speculative decoding: speed by category of prompt, and what checking drafts costs."""
