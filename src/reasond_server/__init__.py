"""The reasoning server: strategies over any language model, every step pushed to the client; not the client library."""
