"""`reasond install`: prints, or writes, what a client of other makers needs to use a server."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from reasond_server.cli.options import Environ, command
from reasond_server.cli.outcome import ExitCode, usage_error
from reasond_server.cli.terminal import write
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

app = typer.Typer(rich_markup_mode=None)

_TOKEN: Final = "REASOND_TOKEN"  # noqa: S105 - the name of a variable, no password
# What clients are told of the window, which no server knows of each model behind it: most have as much.
_WINDOW_TOKENS: Final = 100_000
_WINDOW_NOTE: Final = (
    f"\nIf the window of your model is smaller than {_WINDOW_TOKENS:,} tokens, write it in place of that."
)
# Nothing that a shell, TOML or JSON would read otherwise.
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,199}")


@value
class ClientSetup:
    """What a client needs: the text of a file with its place in the home folder, or steps for a person alone."""

    text: str
    file: str = ""
    after: str = ""


@command(app, "install", short_help="Print what Codex, Claude Code, Cline, Open WebUI or VS Code need to use a server.")
def _install(
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT",
            help="codex, claude, cline, openwebui, vscode; with tools cursor, vscode-mcp, claude-desktop.",
        ),
    ],
    *,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the server's HTTP listener.")
    ] = "http://127.0.0.1:8001",
    model: Annotated[str, typer.Option(metavar="NAME", help="One of the names of GET /v1/models.")] = "reasond",
    is_written: Annotated[
        bool, typer.Option("--write", help="Write the file, if the client has one and it is not there yet.")
    ] = False,
    environ: Environ,
) -> ExitCode:
    """Print what a client needs to use a server; keys are named by their variable and never printed."""
    return install(client, url=url, model=model, home=Path.home() if is_written else None, environ=environ)


def install(client: str, *, url: str, model: str, home: Path | None, environ: Mapping[str, str]) -> ExitCode:
    """Print what `client` needs, or write its file below `home`.

    Raises:
        CommandError: there is no such client, or its file exists.
    """
    if client not in _CLIENTS:
        raise usage_error(f"{client[:80]!r} is no client that is known here", f"One of {', '.join(_CLIENTS)}.")
    if not _ADDRESS.fullmatch(url):
        raise usage_error(f"--url {url[:200]!r} is no address of a server", "Such as http://127.0.0.1:8001.")
    if not _MODEL.fullmatch(model):
        raise usage_error(f"--model {model[:200]!r} is no name of a model", "GET /v1/models lists them.")
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    setup = _CLIENTS[client](base_url, model)
    if home is None or not setup.file:
        place = f"# {'~/' + setup.file}\n" if setup.file else ""
        write(f"{place}{setup.text}")
    else:
        _write_file(home / setup.file, setup.text)
    if setup.after:
        write(f"\n{setup.after}")
    if _TOKEN not in environ:
        write(f"\nA key that lasts: reasond keys create; then export {_TOKEN}=... where the client runs.")
    return ExitCode.OK


def _write_file(path: Path, text: str) -> None:
    """Write a file that is not there yet: what a person wrote into one is not merged by a program."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        write(text)
        raise usage_error(f"{str(path)!r} exists and is left as it is", "Put the lines above into it.") from None
    except OSError as error:
        raise usage_error(f"{str(path)!r} cannot be written: {error.strerror}", "Leave out --write.") from None
    write(f"Wrote {path}.")


def _set_up_codex(base_url: str, model: str) -> ClientSetup:
    """Return the configuration of Codex, which speaks Responses alone."""
    text = f"""\
model = {json.dumps(model)}
model_provider = "reasond"
model_context_window = {_WINDOW_TOKENS}

[model_providers.reasond]
name = "reasond"
base_url = {json.dumps(base_url)}
env_key = "{_TOKEN}"
wire_api = "responses"
"""
    return ClientSetup(text=text, file=".codex/config.toml", after=f"Then: codex{_WINDOW_NOTE}")


def _set_up_claude(base_url: str, model: str) -> ClientSetup:
    """Return the variables of Claude Code, which speaks Messages alone; its small calls ask the model as it is."""
    text = f"""\
export ANTHROPIC_BASE_URL={base_url.removesuffix("/v1")}
export ANTHROPIC_AUTH_TOKEN="${_TOKEN}"
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL=reasond/direct
export CLAUDE_CODE_MAX_CONTEXT_TOKENS={_WINDOW_TOKENS}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
"""
    return ClientSetup(text=text, after=f"Then: claude{_WINDOW_NOTE}")


def _set_up_cline(base_url: str, model: str) -> ClientSetup:
    """Return a command for Cline's program, and what a person enters in its editor, whose settings are in no file."""
    text = f"""\
cline auth openai-compatible --baseurl {base_url} --modelid {model} --apikey "${_TOKEN}"

# Or in the settings of Cline within an editor:
#   API Provider  OpenAI Compatible
#   Base URL      {base_url}
#   API Key       the value of {_TOKEN}
#   Model ID      {model}
"""
    return ClientSetup(text=text)


def _set_up_open_webui(base_url: str, model: str) -> ClientSetup:
    """Return the variables of Open WebUI; its titles, tags and questions are one call of the model each."""
    text = f"""\
export OPENAI_API_BASE_URL={base_url}
export OPENAI_API_KEY="${_TOKEN}"
export DEFAULT_MODELS={model}
export TASK_MODEL_EXTERNAL=reasond/direct
"""
    after = "Then: open-webui serve\nWhat an administrator has saved in its settings counts in place of these."
    return ClientSetup(text=text, after=after)


def _set_up_vs_code(base_url: str, model: str) -> ClientSetup:
    """Return a provider for VS Code's chat, which keeps the key in a store of its own."""
    provider = {
        "name": "reasond",
        "vendor": "customendpoint",
        "apiType": "chat-completions",
        "models": [
            {
                "id": model,
                "name": model,
                "url": f"{base_url}/chat/completions",
                "toolCalling": True,
                "vision": False,
                "thinking": True,
                "maxInputTokens": _WINDOW_TOKENS,
                "maxOutputTokens": 16_000,
            }
        ],
    }
    after = (
        "Chat: Manage Language Models, Add, Custom Endpoint: enter a name and the key there; the gear opens\n"
        "chatLanguageModels.json, where the models above belong."
    )
    return ClientSetup(text=json.dumps([provider], indent=2), after=after)


def _set_up_cursor(base_url: str, _model: str) -> ClientSetup:
    """Return Cursor's file of tools, which names the variable of the token."""
    server = {"url": _find_mcp(base_url), "headers": {"Authorization": f"Bearer ${{env:{_TOKEN}}}"}}
    return ClientSetup(text=json.dumps({"mcpServers": {"reasond": server}}, indent=2), file=".cursor/mcp.json")


def _set_up_vs_code_tools(base_url: str, _model: str) -> ClientSetup:
    """Return VS Code's file of tools of a folder; it asks for the token once and keeps it."""
    token = {"type": "promptString", "id": "reasond-token", "description": "Token of reasond", "password": True}
    headers = {"Authorization": "Bearer ${input:reasond-token}"}
    server = {"type": "http", "url": _find_mcp(base_url), "headers": headers}
    text = json.dumps({"inputs": [token], "servers": {"reasond": server}}, indent=2)
    return ClientSetup(text=text, after="It belongs in .vscode/mcp.json of a folder.")


def _set_up_claude_desktop(_base_url: str, _model: str) -> ClientSetup:
    """Return the block for Claude Desktop, which starts programs by their whole path, in a folder of its own."""
    config = Path("config.toml").resolve()
    args = ["mcp", "--config", str(config)] if config.is_file() else ["mcp"]
    server = {"command": str(Path(sys.executable).with_name("reasond")), "args": args}
    after = "It belongs in claude_desktop_config.json: Settings, Developer, Edit Config."
    if len(args) == 1:
        after += '\nThere is no config.toml here: add "--config" and the whole path of yours to the args.'
    if importlib.util.find_spec("mcp") is None:
        after += "\nFirst: pip install 'reasond-server[mcp]'; the package mcp is not installed here, and it needs that."
    text = json.dumps({"mcpServers": {"reasond": server}}, indent=2)
    return ClientSetup(text=text, after=after)


def _find_mcp(base_url: str) -> str:
    return f"{base_url.removesuffix('/v1')}/mcp"


_CLIENTS: Final[Mapping[str, Callable[[str, str], ClientSetup]]] = {
    "codex": _set_up_codex,
    "claude": _set_up_claude,
    "cline": _set_up_cline,
    "openwebui": _set_up_open_webui,
    "vscode": _set_up_vs_code,
    "claude-desktop": _set_up_claude_desktop,
    "cursor": _set_up_cursor,
    "vscode-mcp": _set_up_vs_code_tools,
}
