"""The executions that run in this process: admission, the life of a run, accounts, recovery and drain."""
