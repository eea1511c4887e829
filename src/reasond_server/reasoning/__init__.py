"""The entry point of the core for reasoning: lists and selects strategies; starts, follows and looks up executions."""
