"""Addresses of the form host:port: their parts, and whether other machines can reach them; no name is resolved."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import field

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
