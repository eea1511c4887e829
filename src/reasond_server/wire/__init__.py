"""What both transports share: the JSON mapping, request ids, the TLS files; imports neither."""
