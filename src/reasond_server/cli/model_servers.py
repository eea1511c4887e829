"""Model servers as commands examine them: which models one offers, what it supports, and the TOML that says so."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from reasond_server.assembly.backends import MAIN
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.config.reference import format_toml_value
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.model import ModelError, ModelUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.config import BackendSettings
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.probes import Report

_MOST_BYTES: Final = 4 * 1024 * 1024
_REFUSED: Final = 401, 403
_OK: Final = 200


def list_models(base_url: str, *, key: str = "", limit_s: float = 5.0) -> Sequence[str]:
    """Return the names of the models that the server at `base_url` offers, in its order.

    Raises:
        CommandError: it cannot be reached, refuses the key, or does not answer as a model server does.
    """
    address = urlsplit(base_url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.netloc, timeout=limit_s)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/models", headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, ssl.SSLError, http.client.HTTPException) as error:
        raise CommandError(
            f"There is no model server at {base_url} ({type(error).__name__})",
            remedy="Start it, or name its address, up to what stands before /chat/completions.",
            code=ExitCode.UNREACHABLE,
        ) from None
    finally:
        connection.close()
    if answer.status in _REFUSED:
        raise CommandError(
            f"The server at {base_url} does not accept the key",
            remedy="Set the environment variable that holds its key, and name it with --key-env.",
            code=ExitCode.NOT_ALLOWED,
        )
    try:
        rows = json.loads(body)["data"] if answer.status == _OK else None
        return [str(row["id"]) for row in rows or ()]
    except (ValueError, KeyError, TypeError):
        return []


def examine(options: BackendOptions, *, limit_s: float) -> Report:
    """Probe the server of a backend; every call ends after `limit_s` seconds.

    Raises:
        CommandError: it cannot be probed.
    """
    # Imported here: the import of aiohttp is slow, and other commands do not need it.
    from reasond_server.llm.openai.probes import probe  # noqa: PLC0415 - see above

    try:
        return asyncio.run(probe(options, limit_s=limit_s))
    except ModelUnavailableError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.UNREACHABLE) from error
    except PermissionMissingError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.NOT_ALLOWED) from error
    except ModelError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.MODEL) from error


def format_section(options: BackendOptions, report: Report, configured: BackendSettings) -> str:
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
    return "\n".join(
        [f"[{name_section(options)}]", *(f"{name} = {format_toml_value(one)}" for name, one in values.items())]
    )


def name_section(options: BackendOptions) -> str:
    """Return the name of the section of config.toml that describes the backend."""
    return options.name if options.name == MAIN else f"{MAIN}.backends.{options.name}"
