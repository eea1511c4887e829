"""The command `reasond`; a command's own module is imported when that command runs, and no sooner."""

from reasond_server.cli.program import main

__all__ = ["main"]
