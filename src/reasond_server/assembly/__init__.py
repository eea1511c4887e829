"""Settings become parts, and the parts a server: the only room that knows both."""
