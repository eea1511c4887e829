"""Which proxy the environment names for a model server by HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, less NO_PROXY."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from reasond_server.errors import SettingsError, shown


def environment_proxy(base_url: str) -> str | None:
    """Return the address of the proxy for `base_url`; None where there is none.

    NO_PROXY holds names and their ends, addresses, and networks such as 10.0.0.0/8.

    Raises:
        SettingsError: the proxy speaks no HTTP, as those over SOCKS, or has no address.
    """
    parts = urlsplit(base_url)
    proxies = getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or not parts.hostname or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    if _is_in_networks(parts.hostname, proxies.get("no", "")):
        return None
    proxy = named if "://" in named else f"http://{named}"
    if wrong := _wrong_with(proxy):
        # Its address is not shown: it may hold a password.
        raise SettingsError(
            f"The environment names a proxy for {shown(parts.hostname)} that {wrong}",
            remedy=f"Set {parts.scheme.upper()}_PROXY to a proxy over HTTP, or name {parts.hostname} in NO_PROXY.",
        )
    return proxy


def _wrong_with(proxy: str) -> str:
    """Return why a proxy cannot be used; empty where it can."""
    try:
        parts = urlsplit(proxy)
        _ = parts.port
    except ValueError:
        return "has no address"
    if parts.scheme not in {"http", "https"}:
        return f"is of the kind {shown(parts.scheme)}, while only those over HTTP can be used"
    return "" if parts.hostname else "has no address"


def _is_in_networks(host: str, excepted: str) -> bool:
    """Return whether `host` is an address within one of the networks in a list with commas: urllib knows names only."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for entry in excepted.split(","):
        with suppress(ValueError):
            if address in ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False
