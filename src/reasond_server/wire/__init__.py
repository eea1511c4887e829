"""What both transports share: the one error table, the JSON mapping, the TLS files; imports neither."""
