"""Limits of callers: requests, concurrent executions and tokens; authentication is elsewhere."""
