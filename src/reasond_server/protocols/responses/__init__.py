"""OpenAI's Responses interface: each response is an execution, or one leg of a turn, read back from its log."""
