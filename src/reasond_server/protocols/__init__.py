"""Protocols of other products' clients, one package each, over the calls of `http_api`."""
