"""The commands by name. The module of a command, in `commands`, is imported when it runs, so that `--help` is quick."""

# The annotations stay values (no `from __future__`), because typer reads them.

import os
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from reasond_server.cli.outcome import MEANINGS, ExitCode, finish

COMMANDS: Final = MappingProxyType(
    {
        "turn": ("turn", "Run a turn of a conversation and watch it."),
        "repair": ("repair", "Have failing code repaired and watch it."),
        "init": ("init", "Write a config.toml for a model server."),
        "install": ("install", "Print what Codex, Claude Code, Cline, Open WebUI or VS Code need to use a server."),
        "serve": ("serve", "Serve until SIGTERM or Ctrl-C."),
        "mcp": ("mcp_stdio", "Serve an MCP host on this machine over stdin and stdout."),
        "worker": ("worker", "Work for the engine of repairs until SIGTERM or Ctrl-C."),
        "demo": ("demo", "Watch an answer being found in a long book, a turn with tools, or a repair."),
        "ask": ("ask", "Ask a question and watch the steps."),
        "eval": ("eval", "Measure what strategies are worth on a set of questions."),
        "strategies": ("strategies", "List the strategies of a server."),
        "token": ("token", "Mint a token for development."),
        "secret-hash": ("token", "Hash an agent's secret for the configuration."),
        "migrate": ("migrate", "Bring the store to the schema of this release."),
        "doctor": ("doctor", "Examine this machine and the configuration."),
        "config": ("config", "Check or show the configuration."),
        "backends": ("backends", "Examine the servers of language models."),
        "tokenizer": ("tokenizer", "Bring tokenizers to this machine."),
        "executions": ("executions", "List, show and observe executions."),
        "turns": ("turn", "List, follow, settle and cancel turns."),
        "keys": ("keys", "Make, list and revoke API keys, which a program can keep for months."),
        "sessions": ("turn", "List, show and delete sessions."),
    }
)
"""The module in `commands` that has a command or a group of commands, and what `reasond --help` says of it."""

_EXIT_CODES = "".join(f"  {code:>3}  {meaning}\n" for code, meaning in MEANINGS.items())
# A line of \b keeps click from filling the paragraph that follows.
_EPILOG = f"""\b
Exit codes:
{_EXIT_CODES}
\b
Environment:
  REASOND_CONFIG, REASOND__SECTION__KEY   configuration (see `reasond config show --origin`)
  REASOND_TARGET, REASOND_TOKEN           the server that `ask`, `turn`, `repair` and the like call
  REASOND_TLS, REASOND_CA_FILE            how they reach it; also REASOND_TIMEOUT_S
  NO_COLOR                                no colours
"""


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`: known by their names at first, imported when one of them is resolved."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - typer's own, of many types
        super().__init__(**attributes)
        for name, (_, short_help) in COMMANDS.items():
            self.add_command(TyperCommand(name, short_help=short_help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer keeps these types to itself
        """Import the command that `args` begins with, if it is one of ours, and resolve it.

        Raises:
            typer.Exit: it cannot be imported, and why was printed.
        """
        if args[0] in COMMANDS:
            code = finish(partial(self._import_command, args[0]))
            if code is not ExitCode.OK and not ctx.resilient_parsing:
                raise typer.Exit(code)
        return super().resolve_command(ctx, args)

    def _import_command(self, name: str) -> ExitCode:
        module, short_help = COMMANDS[name]
        command = get_group(import_module(f"reasond_server.cli.commands.{module}").app).commands[name]
        command.help = command.help or short_help
        self.add_command(command)
        return ExitCode.OK


app = typer.Typer(
    name="reasond",
    cls=LazyGroup,
    help="A reasoning server: strategies over any language model, every step streamed over gRPC.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def main() -> None:
    """Run the command line; ends by SystemExit with the exit code."""
    _open_closed_streams()
    # An answer with characters that the terminal cannot encode must not raise.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Else grpc writes lines of its own to stderr: where a connection is closed early, and where a port is in use.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Else grpc starts its threads again in each process that is begun, where they may crash before git or a job runs.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    app(prog_name="reasond")


def _open_closed_streams() -> None:
    """Discard output if stdout or stderr is closed (`>&-`), as the tools of a shell do."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open to the end


def _show_version(is_wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if is_wanted:
        from importlib.metadata import version  # noqa: PLC0415 - no command needs it

        typer.echo(f"reasond {version('reasond-server')}")
        raise typer.Exit


@app.callback()
def _reasond(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
