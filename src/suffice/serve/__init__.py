"""An OpenAI-compatible server. Importing it starts nothing; `front.py` runs it."""
