"""The commands `keys ...` with their options; their code is imported when they run."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
from typing import Annotated

import typer

from reasond_server.cli.options import AsJson, Config, end
from reasond_server.cli.outcome import ExitCode

keys_app = typer.Typer(
    help="Make, list and revoke API keys, which a program can keep for months.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@keys_app.command("create", short_help="Make a key and print it once.")
def create_key(
    *,
    subject: Annotated[str, typer.Option(metavar="NAME", help="Whom the key stands for.")],
    permission: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What it permits, such as reasoning:execute; repeat for more than one."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One of [auth.roles]; repeat for more than one.")
    ] = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose executions it may see; else the subject's own.")
    ] = "",
    lifetime: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is valid, such as 12h or 90d; else until it is revoked.")
    ] = "",
    config: Config = None,
) -> None:
    """Make an API key: its hash goes to the file of [auth] api_keys_file, stdout gets the key alone, and only now."""

    def command() -> ExitCode:
        from reasond_server.cli import key_keeping

        request = key_keeping.WantedKey(
            subject=subject,
            permissions=tuple(permission or ()),
            roles=tuple(role or ()),
            tenant=tenant,
            lifetime=lifetime,
        )
        return key_keeping.create(request, config=config, environ=os.environ)

    end(command)


@keys_app.command("list", short_help="List the keys.")
def list_keys(*, config: Config = None, as_json: AsJson = False) -> None:
    """List the API keys with whom they stand for, what they permit and whether they are valid."""

    def command() -> ExitCode:
        from reasond_server.cli import key_keeping

        return key_keeping.show(config=config, environ=os.environ, as_json=as_json)

    end(command)


@keys_app.command("revoke", short_help="Revoke a key.")
def revoke_key(
    key: Annotated[str, typer.Argument(metavar="ID", help="The id of the key, as `reasond keys list` shows it.")],
    *,
    config: Config = None,
) -> None:
    """Revoke an API key; running servers refuse it within two seconds."""

    def command() -> ExitCode:
        from reasond_server.cli import key_keeping

        return key_keeping.revoke(key, config=config, environ=os.environ)

    end(command)
