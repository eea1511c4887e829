"""`reasond tokenizer fetch`: downloads OpenAI's ranks, so that tokens can be counted on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reasond_server.assembly.backends import find_rank_folders
from reasond_server.cli.options import Environ, command
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import write
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError
from reasond_server.llm.counting.tokenizers import KNOWN_RANKS, fetch_ranks

app = typer.Typer(rich_markup_mode=None)
tokenizer = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(tokenizer, name="tokenizer")

Folder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where to keep it; left out: where `serve` looks for it.")
]


@command(tokenizer, "fetch", short_help="Bring the ranks of one of OpenAI's encodings to this machine.")
def fetch(
    encoding: Annotated[str, typer.Argument(help="o200k_base or cl100k_base.")] = "o200k_base",
    *,
    source: Annotated[
        str, typer.Option(metavar="URL|FILE", help="Where to read it; left out: where OpenAI publishes it.")
    ] = "",
    folder: Folder = None,
    environ: Environ,
) -> ExitCode:
    """Bring the ranks of one of OpenAI's encodings to this machine, so that `count = "tiktoken"` can use them.

    Nothing is kept unless its checksum is right. The server itself never fetches anything.
    """
    ranks = next((one for one in KNOWN_RANKS if one.name == encoding), None)
    folders = [folder] if folder else list(find_rank_folders(environ))
    if ranks is None:
        names = ", ".join(one.name for one in KNOWN_RANKS)
        raise CommandError(f"{encoding!r} is no encoding that is known here", remedy=f"Known are {names}.")
    if not folders:
        raise CommandError("There is no folder to keep the ranks in", remedy="Name one with --folder, or set HOME.")
    try:
        path = fetch_ranks(ranks, source=source or ranks.source, folder=folders[0])
    except ModelUnavailableError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.UNREACHABLE) from error
    except ModelProtocolError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.MODEL) from error
    write(f"ok: {path}")
    return ExitCode.OK
