"""The proxy that the environment names for an address."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from reasond_server.errors.base import SettingsError, show


def find_proxy(base_url: str) -> str | None:
    """Return the address of the proxy for `base_url` by HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; None if there is none.

    NO_PROXY lists host names, domain suffixes, IP addresses, and networks such as 10.0.0.0/8.

    Raises:
        SettingsError: the proxy is not an HTTP proxy, for example a SOCKS proxy, or has no address.
    """
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return None  # whoever connects refuses it with an error of its own
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
