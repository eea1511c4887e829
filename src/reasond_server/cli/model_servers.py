"""Model servers as commands examine them: which models one offers, what it supports, and the TOML that says so."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from reasond_server.assembly.backends import MAIN
from reasond_server.base.addresses import find_proxy
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.config.reference import format_toml_value
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.model import ModelError, ModelUnavailableError
from reasond_server.llm.profiles import is_hosted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.config import BackendSettings
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.probes import Report

_MOST_BYTES: Final = 4 * 1024 * 1024
_REFUSED: Final = 401, 403
_OK: Final = 200
_NO_LIST: Final = 404, 405


def list_models(base_url: str, *, key: str = "", limit_s: float = 5.0) -> Sequence[str]:
    """Return the names of the models that the server at `base_url` offers, in its order.

    Raises:
        CommandError: it cannot be reached, refuses the key, or has another trouble.
        SettingsError: the environment names a proxy that cannot be used.
    """
    path = f"{urlsplit(base_url).path.rstrip('/')}/models"
    try:
        with closing(_connect(base_url, limit_s)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
    except ssl.SSLCertVerificationError:
        raise CommandError(
            f"The certificate of {base_url} is not trusted here",
            remedy="Name the file of its authority in the environment variable SSL_CERT_FILE.",
            code=ExitCode.UNREACHABLE,
        ) from None
    except (OSError, http.client.HTTPException) as error:
        remedy = "Start it, or name its address, up to what stands before /chat/completions."
        if is_hosted(base_url):
            remedy = "Check that this machine reaches the internet; where that takes a proxy, HTTPS_PROXY names it."
        raise CommandError(
            f"There is no model server at {base_url} ({type(error).__name__})",
            remedy=remedy,
            code=ExitCode.UNREACHABLE,
        ) from None
    if answer.status in _REFUSED:
        remedy = "Set the environment variable that holds its key, and name it with --key-env."
        raise CommandError(
            f"The server at {base_url} does not accept the key",
            remedy="Check the key that the environment variable holds." if key else remedy,
            code=ExitCode.NOT_ALLOWED,
        )
    if answer.status not in {_OK, *_NO_LIST}:
        raise CommandError(
            f"The server at {base_url} answers HTTP {answer.status} when it is asked for its models",
            remedy="Try again, or name the model with --model.",
            code=ExitCode.MODEL,
        )
    try:
        return [str(row["id"]) for row in json.loads(body)["data"] or ()]
    except (ValueError, KeyError, TypeError):
        return []


def _connect(base_url: str, limit_s: float) -> http.client.HTTPConnection:
    """Return a connection that is not open yet, through the proxy of the environment if there is one."""
    address = urlsplit(base_url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    if not (named := find_proxy(base_url)):
        return kind(address.netloc, timeout=limit_s)
    proxy = urlsplit(named)
    connection = kind(str(proxy.hostname), proxy.port or http.client.HTTP_PORT, timeout=limit_s)
    user = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()
    headers = {"Proxy-Authorization": f"Basic {base64.b64encode(user).decode()}"} if proxy.username else {}
    connection.set_tunnel(address.netloc, headers=headers)
    return connection


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
