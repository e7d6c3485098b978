"""Scrooge: attention that terminates early, as an accelerator, beside one that reads everything."""
