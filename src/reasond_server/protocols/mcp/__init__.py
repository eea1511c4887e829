"""The tools, executions and tasks of this server for hosts of the Model Context Protocol."""
