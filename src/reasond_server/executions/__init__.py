"""The event log of every execution and the runner that fills it; knows no strategy by name."""
