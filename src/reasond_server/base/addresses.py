"""Addresses: the parts of host:port, whether other machines can reach one, and the proxy that the environment names.

No name is resolved.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import field
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from reasond_server.errors.base import SettingsError, show
from reasond_server.types.values import value

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65_535
# A provider gives a customer a whole IPv6 network, so an attacker can use all of its addresses.
_IPV6_NETWORK_BITS = 64


@value
class Listening:
    """The addresses of a started server, and its store; an empty address means that the listener is off.

    `token` is set under --dev only, and `console_key` as well, which opens the console. `metrics` is the address of the
    metrics if they have a separate listener. `console` is the URL of the console.
    """

    grpc: str
    http: str
    token: str
    model: str
    store: str
    warnings: tuple[str, ...]
    metrics: str = ""
    console: str = ""
    console_key: str = field(default="", repr=False)

    @property
    def console_link(self) -> str:
        """The shortest URL that opens the console with its key, which stays in the browser; empty if it is off."""
        return f"{self.http}/#token={self.console_key}" if self.console and self.console_key else self.console


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 host must be in brackets.

    Raises:
        ValueError: `address` has another form; the text says which form is right.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > _MAX_PORT:
        message = 'must be "host:port" with a port of 0-65535, an IPv6 host in brackets'
        raise ValueError(message)
    return match["ipv6"] or match["host"], int(match["port"])


def replace_port(address: str, port: int) -> str:
    """Return `address` with `port`, which was bound, in place of its own."""
    return f"{address.rpartition(':')[0]}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach `address` (host:port).

    Raises:
        ValueError: `address` has another form.
    """
    host, _ = split_address(address)
    if host.lower() == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    # In Python 3.11 `is_loopback` is false for ::ffff:127.0.0.1, although every socket treats it as 127.0.0.1.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def find_network(host: str) -> str:
    """Return the network of an IPv6 address, the IPv4 address of a mapped one, or any other text unchanged."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _IPV6_NETWORK_BITS), strict=False))


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
