"""Addresses and headers of requests to a model server, by the rules of OpenAI and of Azure, and proxies."""

from __future__ import annotations

import os
from base64 import b64encode
from contextlib import suppress
from importlib.metadata import version
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from reasond_server.errors.base import SettingsError, show
from reasond_server.telemetry.propagation import build_outgoing_headers
from reasond_server.types.values import value

if TYPE_CHECKING:
    from yarl import URL

    from reasond_server.llm.openai.backend_options import BackendOptions

_OPENAI_HOST: Final = "api.openai.com"
_OPENAI_VARIABLES: Final = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
# Characters that RFC 3986 allows in a path segment in addition to letters, digits and "-._~".
_SAFE_IN_SEGMENTS: Final = "!$&'()*+,;=:@"


@value
class RequestHead:
    """Address and headers of a POST request, without headers that differ per call: length, connection, trace.

    `url` has no credentials. The names of `headers` are in lower case.
    """

    url: URL
    headers: dict[str, str]

    def build_headers(self, *, keeps: bool) -> dict[str, str]:
        """Return the other headers of a call that begins now; `keeps` asks the server to keep the connection open."""
        return {"connection": "keep-alive" if keeps else "close", **build_outgoing_headers()}


class RequestHeads:
    """Builds the heads of requests to one backend, once for each path.

    - OpenAI and compatible servers: `{base_url}/{path}`, `Authorization: Bearer {key}`. OPENAI_ORG_ID and
      OPENAI_PROJECT_ID of the environment are sent to OpenAI only.
    - Azure: `{base_url}/openai/deployments/{model}/{path}` for Chat Completions, without the deployment for other paths
      or if `base_url` already has one; `?api-version=…` and `api-key: {key}`
      (learn.microsoft.com, "Azure OpenAI in Foundry Models REST API reference").
    - A path with a leading slash is relative to the root of the server.

    A query in `base_url` is kept. A name and password in it become basic authentication, which replaces the key.

    Raises:
        SettingsError: `base_url` is not a URL, or a package is not installed.
    """

    def __init__(self, *, options: BackendOptions) -> None:
        try:
            from yarl import URL  # noqa: PLC0415 - a part of aiohttp, which is imported only when a backend is made
        except ImportError:
            raise build_missing_package_error() from None
        try:
            self._base = URL(options.base_url)
        except ValueError:
            raise SettingsError(
                f"The address {show(options.base_url)} of model backend {show(options.name)} is not usable",
                remedy="Set base_url to an address such as https://host/v1.",
            ) from None
        self._options = options
        self._headers = _build_headers(options, self._base)
        self._heads: dict[str, RequestHead] = {}

    def find(self, path: str) -> RequestHead:
        """Return the head of requests to `path`."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = RequestHead(url=self._build_url(path), headers=self._headers)
        return head

    def _build_url(self, path: str) -> URL:
        base, azure_version = self._base, self._options.azure_api_version
        folder = base.raw_path.rstrip("/")
        if path.startswith("/"):
            whole, query = path, {}
        elif azure_version:
            whole, query = f"{folder}/openai{self._deployment_of(path)}/{path}", dict(base.query)
        else:
            whole, query = f"{folder}/{path}", dict(base.query)
        if azure_version:
            query["api-version"] = azure_version
        return base.with_user(None).with_path(whole, encoded=True).with_query(query or None)

    def _deployment_of(self, path: str) -> str:
        """Return the part of an Azure address that names the deployment; empty if there is none."""
        if path != "chat/completions" or "/deployments" in self._base.path:
            return ""
        return f"/deployments/{quote(self._options.model, safe=_SAFE_IN_SEGMENTS)}"


def build_missing_package_error() -> SettingsError:
    """Return the error for a dependency that is not installed."""
    return SettingsError(
        "The provider 'openai' needs the packages aiohttp and httpx2, which are not installed",
        remedy="Install reasond-server again: its dependencies are not complete.",
    )


def _build_headers(options: BackendOptions, base: URL) -> dict[str, str]:
    headers = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": f"reasond-server/{version('reasond-server')}",
    }
    if options.api_key and options.azure_api_version:
        headers["api-key"] = options.api_key
    elif options.api_key:
        headers["authorization"] = f"Bearer {options.api_key}"
    if base.user or base.password:
        credentials = f"{base.user or ''}:{base.password or ''}".encode()
        headers["authorization"] = f"Basic {b64encode(credentials).decode()}"
    if base.host == _OPENAI_HOST:
        named = {header: os.environ.get(variable, "") for header, variable in _OPENAI_VARIABLES.items()}
        headers |= {header: value for header, value in named.items() if value}
    return headers


def find_proxy(base_url: str) -> str | None:
    """Return the address of the proxy for `base_url` by HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; None if there is none.

    NO_PROXY lists host names, domain suffixes, IP addresses, and networks such as 10.0.0.0/8.

    Raises:
        SettingsError: the proxy is not an HTTP proxy, for example a SOCKS proxy, or has no address.
    """
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return None  # RequestHeads refuses it with its own error
    proxies = getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or not parts.hostname or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    if _is_in_networks(parts.hostname, proxies.get("no", "")):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if problem := _find_problem(proxy):
        # Its address is not shown: it may hold a password.
        raise SettingsError(
            f"The environment names a proxy for {show(parts.hostname)} that {problem}",
            remedy=f"Set {parts.scheme.upper()}_PROXY to a proxy over HTTP, or name {parts.hostname} in NO_PROXY.",
        )
    return proxy


def _find_problem(proxy: str) -> str:
    """Return why a proxy cannot be used; empty if it can."""
    try:
        parts = urlsplit(proxy)
        _ = parts.port
    except ValueError:
        return "has no address"
    if parts.scheme not in {"http", "https"}:
        return f"is of the kind {show(parts.scheme)}, while only those over HTTP can be used"
    return "" if parts.hostname else "has no address"


def _is_in_networks(host: str, excepted: str) -> bool:
    """Return whether `host` is an address in one of the comma-separated networks; urllib compares only names."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for entry in excepted.split(","):
        with suppress(ValueError):
            if address in ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False
