"""How families of models write thinking, channels and calls of tools."""
