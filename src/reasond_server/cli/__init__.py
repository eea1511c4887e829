"""The command `reasond`; the module of a command is imported only when that command runs."""

from reasond_server.cli.program import main

__all__ = ["main"]
