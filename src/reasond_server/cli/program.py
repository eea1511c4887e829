"""Only the commands and their options; the code of a command is imported when it runs."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.ask_program import ask
from reasond_server.cli.execution_program import executions_app
from reasond_server.cli.key_program import keys_app
from reasond_server.cli.options import AsJson, Config, Dev, Verbose, call_server, end
from reasond_server.cli.outcome import MEANINGS, ExitCode
from reasond_server.cli.repair_program import repair
from reasond_server.cli.turn_program import sessions_app, turn, turns_app

if TYPE_CHECKING:
    from reasond_server.cli.connecting import Way

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

app = typer.Typer(
    name="reasond",
    help="A reasoning server: strategies over any language model, every step streamed over gRPC.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
config_app = typer.Typer(help="Check or show the configuration.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(config_app, name="config")
backends_app = typer.Typer(help="Examine the servers of language models.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(backends_app, name="backends")
tokenizer_app = typer.Typer(help="Bring tokenizers to this machine.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")
app.command(short_help="Run a turn of a conversation and watch it.")(turn)
app.add_typer(executions_app, name="executions")
app.add_typer(turns_app, name="turns")
app.add_typer(keys_app, name="keys")
app.command(short_help="Have failing code repaired and watch it.")(repair)
app.add_typer(sessions_app, name="sessions")


def main() -> None:
    """Run the command line; ends by SystemExit with the exit code."""
    _open_closed_streams()
    # An answer with characters that the terminal cannot encode must not raise.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # By default grpc writes a line to stderr when a connection is closed early, such as at the end of a demo.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
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
        from importlib.metadata import version

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


@app.command(short_help="Serve until SIGTERM or Ctrl-C.")
def serve(
    *,
    config: Config = None,
    dev: Dev = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Once ready, write addresses and token there as JSON, for you alone."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes that serve together; else [server] workers.")
    ] = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running calls end; a second signal ends at once."""

    def command() -> ExitCode:
        from reasond_server.cli import serving

        return serving.serve(config=config, is_dev=dev, ready_file=ready_file, workers=workers)

    end(command)


class Queue(StrEnum):
    """A queue of the engine of repairs."""

    MODELS = "models"
    CHECKS = "checks"


@app.command(short_help="Work for the engine of repairs until SIGTERM or Ctrl-C.")
def worker(
    *,
    config: Config = None,
    queue: Annotated[
        list[Queue] | None,
        typer.Option(help="The queue to work on; checks needs no key of a model. Repeatable; without it both."),
    ] = None,
) -> None:
    """Do the work of repairs that [engine] hands out, until SIGTERM or Ctrl-C. It serves nobody."""

    def command() -> ExitCode:
        from reasond_server.cli import working

        return working.work(config=config, queues=[each.value for each in queue or Queue])

    end(command)


@app.command(short_help="Watch an answer being found in a long book, a turn with tools, or a repair.")
def demo(
    *,
    turn: Annotated[bool, typer.Option("--turn", help="Only the turn: tools, a hand-off and an approval.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Only a repair: a failing project, run in a sandbox.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the server, so that a browser can show the runs, until Ctrl-C.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Start a server with the embedded model; watch it find an answer in a long book and work on a turn with tools."""

    def command() -> ExitCode:
        if repair:
            from reasond_server.cli import demo_repair

            return demo_repair.run(is_verbose=verbose, is_kept=keep)
        from reasond_server.cli import demo

        return demo.run(is_only_turn=turn, is_verbose=verbose, is_kept=keep)

    end(command)


app.command(short_help="Ask a question and watch the steps.")(ask)


@app.command(short_help="List the strategies of a server.")
@call_server()
def strategies(
    *,
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """List the strategies of a server, with their parameters, defaults and ranges."""
    from reasond_server.cli import listing

    return listing.show_strategies(way=way, environ=os.environ, as_json=as_json)


@app.command("token", short_help="Mint a token for development.")
def mint_token(
    *,
    subject: Annotated[str, typer.Option(metavar="NAME", help="Whom the token stands for.")],
    permission: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="What it permits, such as reasoning:execute; repeat for more than one."),
    ],
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose executions it may see; else the subject's own.")
    ] = None,
    lifetime: Annotated[
        str, typer.Option(metavar="TIME", help="How long it lives, such as 90s, 30m, 1h or 1d.")
    ] = "1h",
    key: Annotated[
        str | None, typer.Option(metavar="ID", help="Key that signs it; else the first of [auth] keys.")
    ] = None,
    config: Config = None,
) -> None:
    """Mint a token for development with a configured key; stdout gets the token alone."""

    def command() -> ExitCode:
        from reasond_server.cli import minting

        request = minting.WantedToken(
            subject=subject, permissions=tuple(permission), tenant=tenant, lifetime=lifetime, key_id=key
        )
        return minting.mint(request, config=config, environ=os.environ)

    end(command)


@app.command("secret-hash", short_help="Hash an agent's secret for the configuration.")
def hash_agent_secret() -> None:
    """Read a secret from the terminal or standard input, and print its argon2id hash for [auth.agents]."""

    def command() -> ExitCode:
        from reasond_server.cli import minting

        return minting.print_secret_hash()

    end(command)


@config_app.command("check", short_help="Say whether a server would start.")
def check_config(*, config: Config = None, dev: Dev = False) -> None:
    """Say whether a server would start with the configuration: exit code 0 if so, else 2."""

    def command() -> ExitCode:
        from reasond_server.cli import config_commands

        return config_commands.check(config, environ=os.environ, is_dev=dev)

    end(command)


@config_app.command("show", short_help="Show every key with its value.")
def show_config(
    *,
    config: Config = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every key with the value that applies; secrets are shown as ***."""

    def command() -> ExitCode:
        from reasond_server.cli import config_commands

        return config_commands.show(config, environ=os.environ, has_origin=origin, as_json=as_json)

    end(command)


@backends_app.command("check", short_help="Probe a model server and print the TOML that describes it.")
def check_backend(
    name: Annotated[str, typer.Argument(help="One of [llm.backends]; left out: [llm] itself.")] = "",
    *,
    config: Config = None,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=600, help="Longest time for one of the calls.")
    ] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Probe a model server with some twenty short calls: what holds, how that was seen, and the TOML to paste.

    Exit 0 if the profile in use says the same, 6 if there is something to paste or the server fails.
    """

    def command() -> ExitCode:
        from reasond_server.cli import backend_checks

        return backend_checks.check(name, config=config, environ=os.environ, limit_s=limit, as_json=as_json)

    end(command)


@tokenizer_app.command("fetch", short_help="Bring the ranks of one of OpenAI's encodings to this machine.")
def fetch_tokenizer(
    encoding: Annotated[str, typer.Argument(help="o200k_base or cl100k_base.")] = "o200k_base",
    *,
    source: Annotated[
        str, typer.Option(metavar="URL|FILE", help="Where to read it; left out: where OpenAI publishes it.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to keep it; left out: where `serve` looks for it.")
    ] = None,
) -> None:
    """Bring the ranks of one of OpenAI's encodings to this machine, so that `count = "tiktoken"` can use them.

    Nothing is kept unless its checksum is right. The server itself never fetches anything.
    """

    def command() -> ExitCode:
        from reasond_server.cli import tokenizer

        return tokenizer.fetch(encoding, source=source, folder=folder, environ=os.environ)

    end(command)


@app.command(short_help="Bring the store to the schema of this release.")
def migrate(*, config: Config = None) -> None:
    """Bring the database of [store] url to the schema of this release; stop servers of older releases first."""

    def command() -> ExitCode:
        from reasond_server.cli import storing

        return storing.migrate(config, environ=os.environ)

    end(command)


@app.command(short_help="Examine this machine and the configuration.")
def doctor(*, config: Config = None) -> None:
    """Examine this machine and the configuration; exit 1 if something would keep reasond from working."""

    def command() -> ExitCode:
        from reasond_server.cli import doctor

        return doctor.examine(config, environ=os.environ)

    end(command)
