"""The shepherd: a process of its own for each job, which starts, watches and ends it; standard library only."""
