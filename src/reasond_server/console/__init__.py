"""The console: pages for a browser, over JSON-RPC and server-sent events alone."""
