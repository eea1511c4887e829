"""Plain data for both transports: the one error table and the JSON mapping; imports neither."""
