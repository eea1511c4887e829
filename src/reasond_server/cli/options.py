"""The options that several commands have, and how a command ends."""

# The annotations stay values (no `from __future__`), because typer reads them.

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

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
AsEvents = Annotated[bool, typer.Option("--json", help="Print one JSON object per event and line.")]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Longest time for the command.", show_default="600")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="On a terminal, too: a line for each step, and every figure at the end.")
]


def end(command: Callable[[], ExitCode]) -> NoReturn:
    """Run `command`, its imports included, and end with its exit code."""
    raise typer.Exit(finish(command))


def call_server(*, timeout: object = None) -> Callable[[Callable[..., ExitCode]], Callable[..., None]]:
    """Return a decorator for a command that calls a server: its parameter `way` becomes the options that lead there.

    `timeout` is the option for the longest time of the call, if it has one. The command ends with the exit code that
    the function returns.
    """
    kinds: dict[str, object] = {"target": Target, "token": Token, "tls": Tls, "ca_file": CaFile}
    if timeout is not None:
        kinds["timeout"] = timeout
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False if kind is Tls else None, annotation=kind)
        for name, kind in kinds.items()
    ]

    def decorate(function: Callable[..., ExitCode]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:  # noqa: ANN401 - of each option its own type
            def command() -> ExitCode:
                from reasond_server.cli.connecting import Way  # noqa: PLC0415 - only where a command runs

                target, token, tls, ca_file, *rest = [arguments.pop(name) for name in kinds]
                timeout_s = rest[0] if rest else None
                way = Way(target=target, token=token, is_tls=tls, ca_file=ca_file, timeout_s=timeout_s)
                return function(**arguments, way=way)

            end(command)

        own = list(inspect.signature(function).parameters.values())
        place = [each.name for each in own].index("way")
        # Typer reads options from the signature; functools.wraps would lead it to that of `function`.
        run.__signature__ = inspect.Signature([*own[:place], *options, *own[place + 1 :]])  # type: ignore[attr-defined]  # functions have it
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return decorate
