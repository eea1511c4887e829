"""The event log of every execution: the port of the stores, appending, leases and retention; knows no strategy."""
