"""A2A 1.0: messages become tasks of reasoning or turns; a task of A2A is an execution, read back from its log."""
