"""Only the commands and their options; the code of a command is imported when it runs."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from reasond_server.cli.execution_program import executions_app
from reasond_server.cli.key_program import keys_app
from reasond_server.cli.options import AsJson, CaFile, Config, Dev, Target, Tls, Token, end
from reasond_server.cli.outcome import MEANINGS, ExitCode
from reasond_server.cli.repair_program import repair
from reasond_server.cli.turn_program import sessions_app, turn, turns_app

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


@app.command(short_help="Watch an answer being found in a long book, a turn with tools, or a repair.")
def demo(
    *,
    turn: Annotated[bool, typer.Option("--turn", help="Only the turn: tools, a hand-off and an approval.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Only a repair: a failing project, run in a sandbox.")
    ] = False,
) -> None:
    """Start a server with the embedded model; watch it find an answer in a long book and work on a turn with tools."""

    def command() -> ExitCode:
        if repair:
            from reasond_server.cli import demo_repair

            return demo_repair.run()
        from reasond_server.cli import demo

        return demo.run(is_only_turn=turn)

    end(command)


@app.command(short_help="Ask a question and watch the steps.")
def ask(  # noqa: PLR0917 - one parameter per option
    query: Annotated[
        str | None, typer.Argument(metavar="[QUESTION]", help="The question; left out with --resume.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Strategy; else the agent or the server chooses.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the strategy; repeat for more than one."),
    ] = None,
    material: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The long text that the question is about, PDF and DOCX too; - reads stdin."),
    ] = None,
    agent: Annotated[str, typer.Option(metavar="ID", help="Registered agent whose strategies apply.")] = "",
    system: Annotated[str, typer.Option(metavar="TEXT", help="Instructions for every model call.")] = "",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A backend that the server offers; else its own model.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON Schema that the answer must satisfy; - reads stdin.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="An image that the question is about; may be repeated.")
    ] = None,
    target: Target = None,
    token: Token = None,
    tls: Tls = False,  # noqa: FBT002 - an option
    ca_file: CaFile = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest time for the run.", show_default="600")
    ] = None,
    keep_running: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--keep-running", help="Let the run go on when this command is interrupted or cut off.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="EXECUTION[:SEQUENCE]", help="Follow a run after that event instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event and line.")] = False,  # noqa: FBT002 - an option
) -> None:
    """Ask a question and watch it being worked out, one line per step; Ctrl-C cancels the run.

    Where stdout is no terminal it gets the answer alone, and the steps go to stderr.
    """

    def command() -> ExitCode:
        from reasond_server.cli import asking, connecting

        question = asking.Question(
            query=query,
            strategy=strategy,
            settings=tuple(settings or ()),
            material=material,
            agent=agent,
            system=system,
            model=model,
            schema=schema,
            images=tuple(image or ()),
            is_kept_running=keep_running,
            resume=resume,
        )
        way = connecting.Way(target=target, token=token, is_tls=tls, ca_file=ca_file, timeout_s=timeout)
        return asking.ask(question, way=way, environ=os.environ, as_json=as_json)

    end(command)


@app.command(short_help="List the strategies of a server.")
def strategies(
    *,
    target: Target = None,
    token: Token = None,
    tls: Tls = False,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """List the strategies of a server, with their parameters, defaults and ranges."""

    def command() -> ExitCode:
        from reasond_server.cli import connecting, listing

        way = connecting.Way(target=target, token=token, is_tls=tls, ca_file=ca_file, timeout_s=None)
        return listing.show_strategies(way=way, environ=os.environ, as_json=as_json)

    end(command)


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
