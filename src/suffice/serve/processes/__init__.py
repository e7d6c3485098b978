"""Engines in processes: what they say to each other, who is alive, who gets a request."""
