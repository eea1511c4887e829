"""What the server tells its operator: logs, metrics, spans; texts of callers and models in spans only, if asked for."""
