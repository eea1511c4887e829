"""What both transports share: the one error table, the JSON mapping, request ids, the TLS files; imports neither."""
