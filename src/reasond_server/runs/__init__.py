"""What works on a log in this process: admission, the life of a run, accounts, recovery and drain."""
