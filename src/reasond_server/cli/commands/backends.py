"""`reasond backends check`: measures what a model server supports, and prints the TOML for it and where it belongs."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from reasond_server.assembly.backends import read_backend_options
from reasond_server.cli.model_servers import examine, format_section, name_section
from reasond_server.cli.options import AsJson, Config, Environ, command, describe_source
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import escape_controls, fit_line, sanitize, write
from reasond_server.config import LoadedSettings, choose_provider, load
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.probes import Report

app = typer.Typer(rich_markup_mode=None)
backends = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(backends, name="backends")

_EVIDENCE_WIDTH = 100
_HEADER: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")


@command(backends, "check", short_help="Probe a model server and print the TOML that describes it.")
def check(
    name: Annotated[str, typer.Argument(help="One of [llm.backends]; left out: [llm] itself.")] = "",
    *,
    config: Config = None,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=600, help="Longest time for one of the calls.")
    ] = 20.0,
    as_json: AsJson = False,
    environ: Environ,
) -> ExitCode:
    """Probe a model server with some twenty short calls: what holds, how that was seen, and the TOML to paste.

    Exit 0 if the profile in use says the same, 6 if there is something to paste or the server fails.
    """
    loaded = load(config, environ)
    if not name and choose_provider(loaded.settings, environ) == "demo":
        raise CommandError(
            "The embedded demo model answers, and there is no server to examine",
            remedy='Set provider = "openai" and model in [llm], or name one of [llm.backends].',
            code=ExitCode.BAD_REQUEST,
        )
    options = read_backend_options(loaded.settings, environ, name)
    report = examine(options, limit_s=limit)
    llm = loaded.settings.llm
    toml = format_section(options, report, llm.backends[name] if name else llm)
    if as_json:
        write(escape_controls(json.dumps(to_plain(options, report, toml), indent=2, ensure_ascii=False)))
    else:
        write(f"{options.model} at {options.base_url} ({describe_source(loaded)})\n")
        write("\n".join(format_report(options, report, toml, place=_find_place(loaded, options, toml))))
    for warning in report.warnings:
        warn(warning)
    return ExitCode.MODEL if toml else ExitCode.OK


def to_plain(options: BackendOptions, report: Report, toml: str) -> dict[str, object]:
    """Return `report` as plain data."""
    return {
        "backend": options.name,
        "model": options.model,
        "base_url": options.base_url,
        "profile": report.base.name,
        "fits": not toml,
        "findings": [
            {"subject": finding.subject, "holds": finding.holds, "evidence": finding.evidence}
            for finding in report.findings
        ],
        "changes": report.changes,
        "toml": toml,
        "warnings": list(report.warnings),
    }


def _find_place(loaded: LoadedSettings, options: BackendOptions, toml: str) -> str:
    """Return where the section belongs, in words."""
    section = name_section(options)
    if loaded.file is None:
        return "into a new file config.toml here, which every command then reads"
    try:
        place = find_place(loaded.file.read_text(encoding="utf-8-sig"), toml, section)
    except (OSError, ValueError):
        place = None
    if place is None:
        return f"into {loaded.file}, in place of [{section}] and of [{section}.capabilities]"
    return place.describe(str(loaded.file))


def format_report(options: BackendOptions, report: Report, toml: str, *, place: str) -> Iterator[str]:
    """Yield the table of capabilities, then the TOML to paste and the `place` for it."""
    rows = [("examined", "holds", "seen")]
    rows += [(one.subject, one.holds, fit_line(one.evidence, _EVIDENCE_WIDTH)) for one in report.findings]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for subject, holds, seen in rows:
        yield f"{subject:<{widths[0]}}  {holds:<{widths[1]}}  {seen}".rstrip()
    yield ""
    if not toml:
        yield f"The profile {report.base.name} says the same; nothing is to be changed."
        return
    yield f"# Other than the profile {options.profile.name} says. This goes"
    yield f"# {sanitize(place)}:"
    yield sanitize(toml)


@value
class SectionPlace:
    """Where a section belongs: in place of the lines `first` to `last`, with the ranges `dropped` deleted.

    Lines are counted from 1. Without a section in the file, both are 0 and the new one belongs at its end.
    """

    first: int = 0
    last: int = 0
    dropped: Sequence[tuple[int, int]] = ()

    def describe(self, file: str) -> str:
        """Return the place in words."""
        if not self.first:
            return f"at the end of {file}"
        dropped = ", ".join(_describe_lines(*one) for one in self.dropped)
        return f"in place of {_describe_lines(self.first, self.last)} of {file}" + (
            f"; delete {dropped}" * bool(dropped)
        )

    def apply(self, text: str, section: str) -> str:
        """Return `text` with `section` in this place."""
        lines = text.splitlines()
        if not self.first:
            return "\n".join([*lines, "", section, ""])
        kept: list[str | None] = list(lines)
        for first, last in self.dropped:
            kept[first - 1 : last] = [None] * (last - first + 1)
        kept[self.first - 1 : self.last] = [section]
        return "\n".join([line for line in kept if line is not None] + [""])


def find_place(text: str, section: str, table: str) -> SectionPlace | None:
    """Return where `section`, the whole text of the table `[table]`, belongs in the TOML of `text`.

    None if that cannot be said in lines, as where the table is written in another way. What is returned was tried: with
    the section there, the file holds that table, and everything else as before.
    """
    parts = _list_parts(text)
    own = [part for part in parts if part[0] == table]
    inner = [part[1:] for part in parts if part[0] == f"{table}.capabilities"]
    place = SectionPlace(first=own[0][1], last=own[0][2], dropped=inner) if own else SectionPlace(dropped=inner)
    try:
        if _split(place.apply(text, section), table) == (_split(section, table)[0], _split(text, table)[1]):
            return place
    except tomllib.TOMLDecodeError:
        pass
    return None


def _list_parts(text: str) -> list[tuple[str, int, int]]:
    """Return the name, first and last line of each table; blank lines and comments before the next one are left out."""
    parts: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header:
            parts.append((header[1].replace(" ", ""), number, number))
        elif parts and line.strip() and not line.lstrip().startswith("#"):
            parts[-1] = (*parts[-1][:2], number)
    return parts


def _split(text: str, table: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of `table` in `text` but for its `backends`, and everything else."""
    rest = tomllib.loads(text)
    node: Any = rest
    *outer, name = table.split(".")
    for part in outer:
        node = node.get(part, {})
    found = node.pop(name, {})
    if not isinstance(found, dict):
        return {}, rest
    others = found.pop("backends", None)
    if others is not None:
        node[name] = {"backends": others}
    return found, rest


def _describe_lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first}-{last}"
