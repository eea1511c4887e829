"""Code that both transports share: the JSON mapping, request ids, the TLS files; it imports neither transport."""
