"""Language models behind one port: calls, events, token counts. Nothing here depends on a strategy."""
