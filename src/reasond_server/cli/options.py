"""The options and arguments that several commands have, how they are parsed, and how a command ends."""

# The annotations stay values (no `from __future__`), because typer reads them.

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from reasond_server.cli.outcome import ExitCode, finish, usage_error

if TYPE_CHECKING:
    from reasond_server.config import LoadedSettings

CommandT = TypeVar("CommandT", bound=Callable[..., ExitCode])
Environ: TypeAlias = Mapping[str, str]
"""The environment of the process, which `command` passes to commands that have a parameter `environ`."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIFETIME = re.compile(r"([0-9]{1,9})\s*([smhd]?)")

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
SHORTEST_S = 0.001
MOST_COUNT = 1_000_000_000
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=SHORTEST_S, help="Longest time for the command.", show_default="600"),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="On a terminal, too: a line for each step, and every figure at the end.")
]


def command(
    app: typer.Typer,
    name: str,
    *,
    short_help: str | None = None,
    context_settings: dict[str, bool] | None = None,
    timeout: object = None,
) -> Callable[[CommandT], CommandT]:
    """Return a decorator that makes a function a command of `app`, which ends with the exit code that it returns.

    The parameters of the function are those of the command, but for two: `environ` is the environment of the process,
    and `connection` becomes the options for calling a server. `timeout` is the option for the longest time of the call,
    if it has one. The function itself stays as it is, and raises CommandError for whatever the user did wrong.
    """
    kinds: dict[str, object] = {"target": Target, "token": Token, "tls": Tls, "ca_file": CaFile}
    if timeout is not None:
        kinds["timeout"] = timeout
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False if kind is Tls else None, annotation=kind)
        for name, kind in kinds.items()
    ]

    def decorate(function: CommandT) -> CommandT:
        own = inspect.signature(function, eval_str=True).parameters

        def call(arguments: dict[str, Any]) -> ExitCode:
            if "connection" in own:
                from reasond_server.cli.connection import ConnectionOptions  # noqa: PLC0415 - it imports the client

                target, token, tls, ca_file, *rest = [arguments.pop(name) for name in kinds]
                arguments["connection"] = ConnectionOptions(
                    target=target, token=token, is_tls=tls, ca_file=ca_file, timeout_s=rest[0] if rest else None
                )
            if "environ" in own:
                arguments["environ"] = os.environ
            return function(**arguments)

        def run(**arguments: Any) -> None:  # noqa: ANN401 - of each option its own type
            raise typer.Exit(finish(partial(call, arguments)))

        replaced = {"connection": options, "environ": []}
        shown = [each for own_name, one in own.items() for each in replaced.get(own_name, [one])]
        # Typer reads options from the signature; functools.wraps would lead it to that of `function`.
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # functions have it
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name, short_help=short_help, context_settings=context_settings)(run)
        return function

    return decorate


def parse_cursor(text: str) -> tuple[str, int]:
    """Parse `EXECUTION[:SEQUENCE]` into the execution id and the last sequence number that was received.

    Raises:
        CommandError: `text` has another form.
    """
    execution_id, colon, sequence = text.partition(":")
    is_number = sequence.isascii() and sequence.isdecimal() and len(sequence) < len(str(2**63))
    if not execution_id or (colon and not is_number):
        raise usage_error(f"--resume {text[:80]!r} is no EXECUTION or EXECUTION:SEQUENCE", "0 replays from the start.")
    return execution_id, int(sequence or "0")


def parse_setting(text: str) -> tuple[str, str | int | float | bool]:
    """Parse `key=value`; a value that is not a JSON number, string or boolean is returned as text.

    Raises:
        CommandError: the key or the `=` is missing.
    """
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise usage_error(f"--set {text[:80]!r} is no key=value", "Such as --set chunk_size=4096.")
    return key.strip(), _parse_scalar(value)


def _parse_scalar(text: str) -> str | int | float | bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_scalar = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_scalar else text


def parse_lifetime(text: str) -> float:
    """Parse a lifetime, a number with an optional unit s, m, h or d, and return it in seconds.

    Raises:
        CommandError: `text` is not a lifetime.
    """
    match = _LIFETIME.fullmatch(text.strip())
    if match is None:
        raise usage_error(f"--lifetime {text[:40]!r} is no time", "Such as 90s, 30m, 1h or 1d.")
    return float(int(match[1]) * _UNITS_S[match[2]])


def describe_source(loaded: "LoadedSettings") -> str:
    """Return a short description of where the configuration was read from."""
    variables = sum(origin.startswith("environment") for origin in loaded.origins.values())
    over = f" and {variables} of the environment" if variables else ""
    return f"{loaded.file or 'no file, defaults'}{over}"
