"""Make the manual page docs/reasond.1 from the commands, as their `--help` shows them; the wheel installs it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from reasond_server.cli.outcome import MEANINGS
from reasond_server.cli.program import app
from scripts.pages import ROOT

PATH = Path("docs") / "reasond.1"
HEAD = '.\\" Made by `make docs` from the commands. Do not edit.'
_COLUMNS = re.compile(r"^ +(?P<name>\S.*?) {2,}(?P<meaning>.+)$", re.MULTILINE)


def escape(text: str) -> str:
    """Return `text` for roff: on one line, with hyphens to copy, and no line that begins like a request."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def tell(name: str, meaning: str) -> list[str]:
    """Return a term and its meaning."""
    return [".TP", f"\\fB{escape(name)}\\fR", escape(meaning)]


def list_commands(group: TyperGroup, parent: typer.Context) -> Iterator[tuple[typer.Context, TyperCommand]]:
    """Yield each command with its context, those of groups in the place of the group."""
    for name in list(group.commands):
        _, command, _ = group.resolve_command(parent, [name])
        if command is None:
            raise TypeError(f"{name} is no command")
        context = typer.Context(command, info_name=name, parent=parent)
        if isinstance(command, TyperGroup):
            yield from list_commands(command, context)
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield context, command


def describe(context: typer.Context, command: TyperCommand) -> Iterator[str]:
    """Yield the section of one command: usage, help and options."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {escape(context.command_path)} {escape(usage)}"
    for place, paragraph in enumerate((command.help or "").replace("\b", "").split("\n\n")):
        yield from ([".PP"] if place else [])
        yield escape(paragraph)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            yield from tell(*record)


def make_page() -> str:
    """Return the manual page."""
    group = get_command(app)
    if not isinstance(group, TyperGroup):
        raise TypeError("reasond has no commands")
    root = typer.Context(group, info_name="reasond")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    variables = (group.epilog or "").partition("Environment:\n")[2]
    lines = [HEAD, f'.TH REASOND 1 "" "reasond {version}" "reasond"']
    lines += [".SH NAME", "reasond \\- a reasoning server, and the commands that call it"]
    lines += [".SH SYNOPSIS", "\\fBreasond\\fR [\\fIoptions\\fR] \\fIcommand\\fR [\\fIarguments\\fR]"]
    lines += [".SH DESCRIPTION", escape(group.help or ""), ".PP"]
    lines += [escape("To begin: `reasond demo` shows what it does, `reasond serve --dev` serves, `reasond ask` asks.")]
    lines += [".SH OPTIONS"]
    for parameter in group.get_params(root):
        lines += tell(*(parameter.get_help_record(root) or ("", "")))
    lines += [".SH COMMANDS"]
    for context, command in list_commands(group, root):
        lines += describe(context, command)
    lines += [".SH EXIT STATUS"]
    for code, meaning in MEANINGS.items():
        lines += tell(str(int(code)), meaning)
    lines += [".SH ENVIRONMENT"]
    for match in _COLUMNS.finditer(variables):
        lines += tell(match["name"], match["meaning"])
    return "\n".join([*lines, ""])
