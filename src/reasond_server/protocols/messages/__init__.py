"""Messages as Anthropic's clients send them."""
