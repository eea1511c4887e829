"""The options that several commands have, and how a command ends."""

# The annotations stay values (no `from __future__`), because typer reads them.

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from reasond_server.cli.outcome import ExitCode, finish

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration instead of ./config.toml.")
]
Dev = Annotated[
    bool,
    typer.Option(
        "--dev", help="For development: loopback only, a signing key that ends with the process, a token to start with."
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        envvar="REASOND_TARGET", metavar="HOST:PORT", help="The server to call.", show_default="127.0.0.1:50051"
    ),
]
Token = Annotated[
    str | None, typer.Option(envvar="REASOND_TOKEN", show_envvar=True, metavar="TOKEN", help="The token to call with.")
]
Tls = Annotated[bool, typer.Option("--tls", help="Encrypt, trusting the roots that gRPC brings along.")]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", metavar="FILE", help="Encrypt, trusting the authorities in this PEM file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def end(command: Callable[[], ExitCode]) -> NoReturn:
    """Run `command`, its imports included, and end with its exit code."""
    raise typer.Exit(finish(command))
