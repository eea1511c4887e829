"""Checks the addresses that a model wants fetched: the host against an allow-list, then every address of the host.

A name is resolved once, all its addresses are vetted, and the connection goes to one of them. The name is not resolved
again, because the second answer might be another address. Source: OWASP on server-side request forgery.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from reasond_server.errors.base import show
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARACTERS: Final = 2_000
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_CLEAN_URL = re.compile(r"[!-\[\]-~]+")
# Metadata services of clouds, which give machines their secrets; some of these addresses are not private.
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
# The IANA registry lists these as not global, but some Python releases call them global.
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
    """The server does not connect to this address; the text says why, for the model."""


@value
class Target:
    """The parts of a URL from one parser; `path` begins with a slash, `query` has no question mark."""

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def url(self) -> str:
        """The URL, without the port if it is the default of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}" + (f"?{self.query}" if self.query else "")


_PORTS: Final = {"http": 80, "https": 443}


@value
class AddressPolicy:
    """The hosts that requests may go to (`*.example.org` allows all names below one), and those that may be private."""

    allow_hosts: Collection[str]
    allow_private_hosts: Collection[str] = ()
    allow_http: bool = False

    def vet_url(self, url: str) -> Target:
        """Return the parts of `url` if this policy allows its scheme and host.

        Raises:
            RefusedAddressError: `url` is not an HTTP URL, carries credentials, or names a host that is not allowed.
        """
        if len(url) > MAX_URL_CHARACTERS or not _CLEAN_URL.fullmatch(url):
            raise RefusedAddressError(
                f"the URL must have at most {MAX_URL_CHARACTERS} characters, all of them printable ASCII; escape others"
            )
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise RefusedAddressError(f"{show(url)} is no URL") from None
        schemes = ("https", "http") if self.allow_http else ("https",)
        if parts.scheme not in schemes:
            raise RefusedAddressError(f"the URL must begin with {' or '.join(f'{one}://' for one in schemes)}")
        if "@" in parts.netloc or port == 0:
            raise RefusedAddressError("the URL must not hold a user, a password or port 0")
        host = _normalize_host(host)
        if not _matches_host(host, self.allow_hosts):
            raise RefusedAddressError(
                f"the host {show(host)} is not allowed; allowed are {_list_hosts(self.allow_hosts)}"
            )
        return Target(
            scheme=parts.scheme, host=host, port=port or _PORTS[parts.scheme], path=parts.path or "/", query=parts.query
        )

    async def vet_addresses(self, target: Target, resolve: Resolve) -> Sequence[str]:
        """Return the addresses of the target's host if all of them are allowed; `resolve` is called once.

        Raises:
            RefusedAddressError: the host has no address, or one of its addresses is not allowed.
        """
        try:
            literal = [str(ipaddress.ip_address(target.host))]
        except ValueError:
            literal = []
        found = literal or list(dict.fromkeys(await resolve(target.host, target.port)))
        if not found:
            raise RefusedAddressError(f"the host {show(target.host)} has no address")
        may_be_private = _matches_host(target.host, self.allow_private_hosts)
        for address in found:
            # One bad address among good ones is suspicious, so the host is refused.
            if not is_allowed(address, may_be_private=may_be_private):
                raise RefusedAddressError(f"the host {show(target.host)} has an address that may not be connected to")
        return found


def is_allowed(address: str, *, may_be_private: bool = False) -> bool:
    """Return whether the server may connect to the IP `address`: to a public one, to others only if `may_be_private`.

    An address embedded in `address` (IPv4 in IPv6, NAT64, 6to4, Teredo) is checked as well. Zone ids, metadata
    services, multicast and unspecified addresses are always refused.
    """
    if "%" in address:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return all(_is_one_allowed(one, may_be_private=may_be_private) for one in _unwrap_addresses(parsed))


def _is_one_allowed(address: Address, *, may_be_private: bool) -> bool:
    if address in _METADATA or address.is_multicast or address.is_unspecified:
        return False
    if may_be_private:
        return True
    is_special = any(address in network for network in _NEVER_GLOBAL if network.version == address.version)
    return address.is_global and not address.is_reserved and not is_special


def _unwrap_addresses(address: Address) -> Sequence[Address]:
    """Return the addresses that a packet to `address` may reach: embedded ones, and `address` if it can be a host."""
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


def _normalize_host(host: str) -> str:
    """Return the host in its canonical form."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise RefusedAddressError(f"{show(host)} is no name of a host")
    return host


def _matches_host(host: str, allowed: Collection[str]) -> bool:
    return host in allowed or any(one.startswith("*.") and host.endswith(one[1:]) for one in allowed)


def _list_hosts(hosts: Collection[str]) -> str:
    names = sorted(hosts)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")  # noqa: PLR2004 - as above
