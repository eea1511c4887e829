"""How much a caller may: requests, executions at once, tokens; decides nothing about who calls."""
