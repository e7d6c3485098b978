"""A request's way: heads, bodies, keys, the server's state, text to tokens, streams."""
