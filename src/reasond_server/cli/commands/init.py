"""`reasond init`: finds a model server, asks which model, probes it, and writes config.toml for it."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from reasond_server.assembly.backends import OPENAI_URL, read_backend_options
from reasond_server.cli.model_servers import examine, format_section, list_models
from reasond_server.cli.options import Environ, command
from reasond_server.cli.outcome import CommandError, ExitCode, usage_error, warn
from reasond_server.cli.terminal import sanitize, write
from reasond_server.config import load
from reasond_server.config.reference import format_toml_value
from reasond_server.config.section import require_base_url
from reasond_server.llm.profiles import find_host_profile
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

app = typer.Typer(rich_markup_mode=None)

_USUAL: Final = (
    ("Ollama", "http://127.0.0.1:11434/v1"),
    ("llama.cpp", "http://127.0.0.1:8080/v1"),
    ("vLLM", "http://127.0.0.1:8000/v1"),
    ("LM Studio", "http://127.0.0.1:1234/v1"),
    ("SGLang", "http://127.0.0.1:30000/v1"),
)
"""Servers with the addresses at which they listen if nobody says otherwise."""
_OPENAI_KEY: Final = "OPENAI_API_KEY"
# Names of models that do not write text, which servers list beside those that do.
_NO_CHAT: Final = re.compile(
    r"embed|whisper|tts|dall-e|moderation|realtime|transcribe|image|sora|audio|babbage|davinci|rerank", re.IGNORECASE
)
_LOOK_S: Final = 1.0
_SHOWN: Final = 12
_WIDTH: Final = 100


@value
class ModelServer:
    """A model server that was found, with the models that it offers; `key_env` names the variable of its key."""

    name: str
    base_url: str
    models: Sequence[str]
    key_env: str = ""


@command(app, "init", short_help="Write a config.toml for a model server.")
def _init(
    *,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the model server, such as http://127.0.0.1:11434/v1.")
    ] = "",
    model: Annotated[str, typer.Option(metavar="NAME", help="The model, as its server names it.")] = "",
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Environment variable that holds its key.")] = "",
    file: Annotated[Path, typer.Option(metavar="FILE", help="Where to write.")] = Path("config.toml"),
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=600, help="Longest time for one of the calls.")
    ] = 60.0,
    environ: Environ,
) -> ExitCode:
    """Look for a model server on this machine, ask which model, probe it with some twenty calls, and write config.toml.

    Options answer the questions. A file that exists is left as it is, and what would be in it is printed.
    """
    wanted = ModelServer(name="", base_url=url, models=[model] if model else [], key_env=key_env)
    choose = _ask if sys.stdin.isatty() else None
    return init(wanted, file, environ=environ, limit_s=limit, choose=choose)


def init(
    wanted: ModelServer,
    file: Path,
    *,
    environ: Mapping[str, str],
    limit_s: float,
    choose: Callable[[str, Sequence[str]], int] | None,
) -> ExitCode:
    """Write `file` for the server and the model that are `wanted`, as far as they are named.

    `choose` asks a person for one of several texts and returns its place; None if there is nobody to ask.

    Raises:
        CommandError: there is no such server or model, it cannot be probed, or the file exists or has no folder.
    """
    if not file.parent.is_dir():
        # Before the model server is called, which may cost money.
        raise usage_error(f"the folder of {str(file)!r} does not exist", "Make it, or name another place with --file.")
    server = _find_server(wanted, environ, choose)
    model = _choose_model(wanted, server, choose)
    write(f"{sanitize(model)} at {sanitize(server.base_url)}: trying what it supports, with some twenty short calls …")
    text, warnings = _describe(server, model, environ, limit_s=limit_s)
    for warning in warnings:
        warn(warning)
    if file.exists():
        write(f"\n{text}")
        raise usage_error(
            f"{str(file)!r} exists and is left as it is", "Paste the section above into it, or move it away."
        )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise usage_error(
            f"{str(file)!r} cannot be written: {error.strerror}", "Name another place with --file."
        ) from None
    named = "" if file == Path("config.toml") else f" --config {file}"
    write(f"Wrote {file}. Now start the server, and open the address that it prints:\n\n  reasond serve --dev{named}")
    return ExitCode.OK


def _find_server(
    wanted: ModelServer, environ: Mapping[str, str], choose: Callable[[str, Sequence[str]], int] | None
) -> ModelServer:
    """Return the server that is wanted, or one of those that are found."""
    if base_url := wanted.base_url:
        try:
            # What servers print as their address ends before the path of the interface.
            base_url += "" if urlsplit(require_base_url(base_url)).path else "/v1"
        except ValueError as error:
            raise usage_error(f"--url {base_url[:200]!r} {error}", "Such as http://127.0.0.1:11434/v1.") from None
        key_env = wanted.key_env or (_OPENAI_KEY if find_host_profile(base_url) == "openai" else "")
        models = wanted.models or list_models(base_url, key=_read_key(key_env, environ))
        return ModelServer(name="", base_url=base_url, models=models, key_env=key_env)
    found = list(_look_around(environ))
    if not found:
        raise CommandError(
            "No model server answers at the usual addresses of this machine, and OPENAI_API_KEY is not set",
            remedy="Start one, such as `ollama serve`, or name it: reasond init --url http://HOST:PORT/v1",
            code=ExitCode.UNREACHABLE,
        )
    return found[_pick("Which model server?", [f"{one.name}, {one.base_url}" for one in found], "--url", choose)]


def _look_around(environ: Mapping[str, str]) -> Sequence[ModelServer]:
    """Return the servers of this machine that answer, and OpenAI's own if there is a key for it."""
    found: list[ModelServer] = []
    for name, base_url in _USUAL:
        try:
            models = list_models(base_url, limit_s=_LOOK_S)
        except CommandError:
            continue
        if models:
            found.append(ModelServer(name=name, base_url=base_url, models=models))
    if key := environ.get(_OPENAI_KEY, "").strip():
        try:
            models = list_models(OPENAI_URL, key=key)
        except CommandError as error:
            if not found:
                raise
            warn(f"{error.message}. {error.remedy}")
        else:
            found.append(ModelServer(name="OpenAI", base_url=OPENAI_URL, models=models, key_env=_OPENAI_KEY))
    return found


def _read_key(name: str, environ: Mapping[str, str]) -> str:
    if name and not environ.get(name, "").strip():
        raise usage_error(
            f"The environment variable {name!r} for the key is not set",
            f"export {name}=..., or name another with --key-env.",
        )
    return environ.get(name, "").strip() if name else ""


def _choose_model(wanted: ModelServer, server: ModelServer, choose: Callable[[str, Sequence[str]], int] | None) -> str:
    """Return the model that is wanted, or one that the server offers."""
    if wanted.models:
        return wanted.models[0]
    if not server.models:
        raise CommandError(
            f"The server at {server.base_url} tells of no model",
            remedy="Load one there, such as `ollama pull qwen3`, or name it with --model.",
            code=ExitCode.MODEL,
        )
    models = [one for one in server.models if not _NO_CHAT.search(one)] or server.models
    return models[_pick("Which model?", models, "--model", choose)]


def _pick(question: str, options: Sequence[str], name: str, choose: Callable[[str, Sequence[str]], int] | None) -> int:
    """Return the place of the only option, or of the one that a person chooses."""
    if len(options) == 1:
        return 0
    if choose is None:
        shown = ", ".join(options[:_SHOWN]) + (f" and {len(options) - _SHOWN} more" if len(options) > _SHOWN else "")
        raise usage_error(f"{question} There are {len(options)}: {shown}", f"Name one with {name}.")
    return choose(question, options)


def _ask(question: str, options: Sequence[str]) -> int:
    """Ask on the terminal."""
    for place, option in enumerate(options, 1):
        write(f"  {place:>3}  {sanitize(option)}")
    while True:
        said = str(typer.prompt(question, default="1")).strip()
        if said.isdecimal() and 1 <= int(said) <= len(options):
            return int(said) - 1
        write(f"A number of 1 to {len(options)}, please.")


def _describe(
    server: ModelServer, model: str, environ: Mapping[str, str], *, limit_s: float
) -> tuple[str, Sequence[str]]:
    """Return the text of the file, and what the probes warn of."""
    variables = {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": model,
        "REASOND__LLM__BASE_URL": server.base_url,
        "REASOND__LLM__API_KEY_ENV": server.key_env,
    }
    # Nothing but the answers: a file or variables of another server must not get into the new one.
    settings = load(Path(os.devnull), variables).settings
    options = read_backend_options(settings, environ)
    if options.protocol == "chat":
        report = examine(options, limit_s=limit_s)
        section, warnings = format_section(options, report, settings.llm), report.warnings
    else:
        section, warnings = "", ()
    if not section:
        values = {name: getattr(settings.llm, name) for name in ("provider", "model", "base_url", "api_key_env")}
        section = "\n".join(["[llm]", *(f"{name} = {format_toml_value(one)}" for name, one in values.items())])
    lines = [line for row in section.splitlines() for line in _comment(row)]
    return "\n".join([*_HEAD, *lines, *_TAIL]), warnings


_HEAD: Final = (
    "# Written by `reasond init`. Every key, with what it does: config.example.toml, or",
    "# `reasond config show --origin`. `reasond backends check` tries the model server again.",
    "",
)
_TAIL: Final = (
    "",
    "# What a million tokens cost in US dollars; then results, lists and metrics tell what runs cost.",
    "# input_price_usd = 2.5",
    "# output_price_usd = 10.0",
    "",
)
_COMMENTS: Final = {
    "model": "The model, as its server names it.",
    "base_url": "Up to what stands before /chat/completions.",
    "api_key_env": "The environment variable that holds the key, never the key itself; empty: none is needed.",
    "profile": "What kind of server it is, as the probes saw.",
    "capabilities": "Where this server is other than its profile says.",
}


def _comment(row: str) -> Sequence[str]:
    """Return a line of TOML, after what it means."""
    said = _COMMENTS.get(row.partition(" = ")[0], "")
    return [*textwrap.wrap(said, _WIDTH, initial_indent="# ", subsequent_indent="# "), row]
