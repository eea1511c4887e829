"""Which addresses the server may be sent to by a model: hosts by an allow-list, then every address that they have.

A name is resolved once, all its addresses are looked at, and the connection goes to one of those: a second answer of
the name server, made for the occasion, is never asked for. Source: OWASP's advice against server-side request forgery.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from reasond_server.errors import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARACTERS: Final = 2_000
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_CLEAN_URL = re.compile(r"[!-\[\]-~]+")
# Where clouds tell machines their secrets; some of these are no private addresses.
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::254", "fd00:ec2::23", "fe80::a9fe:a9fe", "fd20:ce::254"),
        ),
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
# Not global by their registry, whatever the Python release says of them.
_NEVER_GLOBAL: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4"),
            *("3fff::/20", "fec0::/10"),
        ),
    )
)


class RefusedAddressError(ValueError):
    """The server does not go there; the text says why, for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL taken apart by one parser only; `path` begins with a slash, `query` has no question mark."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def url(self) -> str:
        """The URL again, with the port left out where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}" + (f"?{self.query}" if self.query else "")


_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Where requests may go: hosts by name, `*.` for all names below one, and those that may be private."""

    allow_hosts: Collection[str]
    allow_private_hosts: Collection[str] = ()
    allow_http: bool = False

    def target(self, url: str) -> Target:
        """Return the parts of `url`, which this policy allows as far as names go.

        Raises:
            RefusedAddressError: it is no URL of HTTP, carries credentials, or its host is not allowed.
        """
        if len(url) > MAX_URL_CHARACTERS or not _CLEAN_URL.fullmatch(url):
            raise RefusedAddressError(
                f"the URL must have at most {MAX_URL_CHARACTERS} characters, all of them printable ASCII; escape others"
            )
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise RefusedAddressError(f"{shown(url)} is no URL") from None
        schemes = ("https", "http") if self.allow_http else ("https",)
        if parts.scheme not in schemes:
            raise RefusedAddressError(f"the URL must begin with {' or '.join(f'{one}://' for one in schemes)}")
        if "@" in parts.netloc or port == 0:
            raise RefusedAddressError("the URL must not hold a user, a password or port 0")
        host = _host_of(host)
        if not _matches(host, self.allow_hosts):
            raise RefusedAddressError(f"the host {shown(host)} is not allowed; allowed are {_named(self.allow_hosts)}")
        return Target(
            scheme=parts.scheme, host=host, port=port or _PORTS[parts.scheme], path=parts.path or "/", query=parts.query
        )

    async def addresses(self, target: Target, resolve: Resolve) -> Sequence[str]:
        """Return the addresses of the target's host, all of them allowed; `resolve` is asked once.

        Raises:
            RefusedAddressError: the host has no address, or one that may not be connected to.
        """
        try:
            literal = [str(ipaddress.ip_address(target.host))]
        except ValueError:
            literal = []
        found = literal or list(dict.fromkeys(await resolve(target.host, target.port)))
        if not found:
            raise RefusedAddressError(f"the host {shown(target.host)} has no address")
        may_be_private = _matches(target.host, self.allow_private_hosts)
        for address in found:
            # One bad address among good ones is no accident, so nothing is picked out.
            if not is_allowed(address, may_be_private=may_be_private):
                raise RefusedAddressError(f"the host {shown(target.host)} has an address that may not be connected to")
        return found


def is_allowed(address: str, *, may_be_private: bool = False) -> bool:
    """Return whether the IP `address` may be connected to: public ones, others only if `may_be_private`.

    Addresses that stand inside others (IPv4 in IPv6, NAT64, 6to4, Teredo) count as well; zone ids are refused, and so
    are metadata services, multicast and unspecified addresses in any case.
    """
    if "%" in address:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return all(_is_one_allowed(one, may_be_private=may_be_private) for one in _inner(parsed))


def _is_one_allowed(address: Address, *, may_be_private: bool) -> bool:
    if address in _METADATA or address.is_multicast or address.is_unspecified:
        return False
    if may_be_private:
        return True
    is_special = any(address in network for network in _NEVER_GLOBAL if network.version == address.version)
    return address.is_global and not address.is_reserved and not is_special


def _inner(address: Address) -> Sequence[Address]:
    """Return the addresses that a packet to `address` may reach: it, unless it only carries another."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    if address in _LOCAL_NAT64:
        return (address, ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF), ipaddress.IPv4Address("127.0.0.1"))
    if address.sixtofour is not None:
        return (address, address.sixtofour)
    return (address, *address.teredo) if address.teredo is not None else (address,)


def _host_of(host: str) -> str:
    """Return the host in its one form."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise RefusedAddressError(f"{shown(host)} is no name of a host")
    return host


def _matches(host: str, allowed: Collection[str]) -> bool:
    return host in allowed or any(one.startswith("*.") and host.endswith(one[1:]) for one in allowed)


def _named(hosts: Collection[str]) -> str:
    names = sorted(hosts)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")  # noqa: PLR2004 - as above
