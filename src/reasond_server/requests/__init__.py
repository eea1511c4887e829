"""Checks of tasks, shared by all kinds of work and all transports; knows no transport."""
