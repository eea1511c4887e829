"""The command `reasond`; the module of a command is imported only when that command runs."""

import gc

_OBJECTS_AT_START = 200_000


def main() -> None:
    """Run the command line; ends by SystemExit with the exit code."""
    # Imports create almost no garbage: collections took 7 % of the start. A running server sets its own threshold.
    gc.set_threshold(_OBJECTS_AT_START)
    from reasond_server.cli.program import main as run  # noqa: PLC0415 - after the threshold, see above

    run()
