"""`reasond backends check`: measures what a model server supports, and prints the TOML for it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from reasond_server.assembly.backends import MAIN, read_backend_options
from reasond_server.cli.config_commands import source_of
from reasond_server.cli.config_text import find_place
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import one_line, printable, write
from reasond_server.config import choose_provider, load
from reasond_server.config.reference import toml_value
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.model import ModelError, ModelUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from reasond_server.config import BackendSettings, LoadedSettings
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.probes import Report

_EVIDENCE_WIDTH = 100


def check(name: str, *, config: Path | None, environ: Mapping[str, str], limit_s: float, as_json: bool) -> ExitCode:
    """Probe the backend `name` ("" for [llm] itself) and print its capabilities; OK if its profile declares the same.

    Raises:
        SettingsError: the configuration is invalid, or has no such backend.
        CommandError: the backend cannot be probed.
    """
    loaded = load(config, environ)
    if not name and choose_provider(loaded.settings, environ) == "demo":
        raise CommandError(
            "The embedded demo model answers, and there is no server to examine",
            remedy='Set provider = "openai" and model in [llm], or name one of [llm.backends].',
            code=ExitCode.BAD_REQUEST,
        )
    options = read_backend_options(loaded.settings, environ, name)
    # Imported here: the import of aiohttp is slow, and other commands do not need it.
    from reasond_server.llm.openai.probes import probe  # noqa: PLC0415 - see above

    try:
        report = asyncio.run(probe(options, limit_s=limit_s))
    except ModelUnavailableError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.UNREACHABLE) from error
    except PermissionMissingError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.NOT_ALLOWED) from error
    except ModelError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.MODEL) from error
    llm = loaded.settings.llm
    toml = toml_of(options, report, llm.backends[name] if name else llm)
    if as_json:
        write(json.dumps(as_plain(options, report, toml), indent=2, ensure_ascii=False))
    else:
        write(f"{options.model} at {options.base_url} ({source_of(loaded)})\n")
        write("\n".join(lines_of(options, report, toml, place=_find_place(loaded, options, toml))))
    for warning in report.warnings:
        warn(warning)
    return ExitCode.MODEL if toml else ExitCode.OK


def toml_of(options: BackendOptions, report: Report, configured: BackendSettings) -> str:
    """Return the complete section for config.toml; "" if nothing has to change.

    It includes all values of `configured`, from the file or the environment, so that it can replace the section.
    """
    if report.base.name == options.profile.name and not report.changes:
        return ""
    values = {name: getattr(configured, name) for name in type(configured).model_fields if name != "backends"}
    values = {name: value for name, value in values.items() if name in configured.model_fields_set}
    if report.base.name != options.profile.name:
        values["profile"] = report.base.name
    if report.changes:
        values["capabilities"] = {**configured.capabilities, **report.changes}
    return "\n".join([f"[{_section_of(options)}]", *(f"{name} = {toml_value(one)}" for name, one in values.items())])


def _section_of(options: BackendOptions) -> str:
    return options.name if options.name == MAIN else f"{MAIN}.backends.{options.name}"


def as_plain(options: BackendOptions, report: Report, toml: str) -> dict[str, object]:
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
    section = _section_of(options)
    if loaded.file is None:
        return "into a new file config.toml here, which every command then reads"
    try:
        place = find_place(loaded.file.read_text(encoding="utf-8-sig"), toml, section)
    except (OSError, ValueError):
        place = None
    if place is None:
        return f"into {loaded.file}, in place of [{section}] and of [{section}.capabilities]"
    return place.describe(str(loaded.file))


def lines_of(options: BackendOptions, report: Report, toml: str, *, place: str) -> Iterator[str]:
    """Yield the table of capabilities, then the TOML to paste and the `place` for it."""
    rows = [("examined", "holds", "seen")]
    rows += [(one.subject, one.holds, one_line(one.evidence, _EVIDENCE_WIDTH)) for one in report.findings]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for subject, holds, seen in rows:
        yield f"{subject:<{widths[0]}}  {holds:<{widths[1]}}  {seen}".rstrip()
    yield ""
    if not toml:
        yield f"The profile {report.base.name} says the same; nothing is to be changed."
        return
    yield f"# Other than the profile {options.profile.name} says. This goes"
    yield f"# {printable(place)}:"
    yield printable(toml)
