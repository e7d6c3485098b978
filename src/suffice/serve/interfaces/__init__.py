"""What clients speak: OpenAI's and Anthropic's requests, and the answers to them."""
