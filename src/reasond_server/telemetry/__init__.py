"""Logs, metrics and spans for the operator; texts of callers and models appear only in spans, if configured."""
