"""Attention: quality and bytes read, needles, decode steps, the kernel alone."""
