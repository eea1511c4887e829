from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.tools.address_checks import AddressPolicy, RefusedAddressError, is_allowed

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICY = AddressPolicy(allow_hosts=("api.example.com", "*.docs.example.com", "8.8.8.8", "2001:4860:4860::8888"))

NEVER = (
    *("127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.0.1"),
    *("0.0.0.0", "0.1.2.3", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1"),
    *("240.0.0.1", "255.255.255.255", "192.0.2.1", "203.0.113.9", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1"),
    *("::ffff:169.254.169.254", "::ffff:a00:1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1"),
    *("ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1"),
    *("192.88.99.1", "3fff::1"),
    *("2001:db8::1", "2001:0:7f00:1::", "100::1", "2130706433", "0x7f.1", "127.1", "example.com", "", "8.8.8.8%1"),
)


@pytest.mark.parametrize("address", NEVER)
def test_addresses_that_are_not_public_are_refused_in_every_spelling(address: str) -> None:
    assert not is_allowed(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "fd12::1", "fe80::1"])
def test_private_addresses_are_allowed_where_the_operator_says_so(address: str) -> None:
    assert is_allowed(address, may_be_private=True)


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0", "::", "224.0.0.1", "fe80::1%0"]
)
def test_metadata_services_are_refused_even_there(address: str) -> None:
    assert not is_allowed(address, may_be_private=True)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_an_ipv6_one_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    mapped = str(ipaddress.IPv6Address((0xFFFF << 32) | number))
    nat64 = str(ipaddress.IPv6Address((0x64FF9B << 96) | number))
    assert is_allowed(mapped) == is_allowed(nat64) == is_allowed(str(address))
    if not is_allowed(str(address)):
        assert not is_allowed(str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))))


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://api.example.com", "api.example.com", 443, "/"),
        ("HTTPS://API.Example.com:8443/a?b=c#d", "api.example.com", 8443, "/a"),
        ("https://api.example.com./x", "api.example.com", 443, "/x"),
        ("https://deep.er.docs.example.com/", "deep.er.docs.example.com", 443, "/"),
        ("https://8.8.8.8/", "8.8.8.8", 443, "/"),
        ("https://[2001:4860:4860:0::8888]:444/", "2001:4860:4860::8888", 444, "/"),
    ],
)
def test_an_allowed_url_is_taken_apart(url: str, host: str, port: int, path: str) -> None:
    target = POLICY.vet_url(url)
    assert (target.scheme, target.host, target.port, target.path) == ("https", host, port, path)
    assert POLICY.vet_url(target.url) == target


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://api.example.com/", "must begin with https://"),
        ("file:///etc/passwd", "must begin with"),
        ("gopher://api.example.com/", "must begin with"),
        ("//api.example.com/", "must begin with"),
        ("https://user@api.example.com/", "must not hold a user"),
        ("https://api.example.com@evil.test/", "must not hold a user"),
        ("https://@api.example.com/", "must not hold a user"),
        ("https://api.example.com:0/", "port 0"),
        ("https://api.example.com:99999/", "is no URL"),
        ("https://[::1/", "is no URL"),
        ("https://evil.test/", "is not allowed; allowed are"),
        ("https://docs.example.com/", "is not allowed"),
        ("https://xdocs.example.com/", "is not allowed"),
        ("https://api.example.com.evil.test/", "is not allowed"),
        ("https://evil.test#.docs.example.com/", "is not allowed"),
        ("https://evil.test\\.docs.example.com/", "printable ASCII"),
        ("https://api.example.com\n.evil.test/", "printable ASCII"),
        ("https://api\u3002example.com/", "printable ASCII"),
        ("https://api.example.com/a b", "printable ASCII"),
        ("https://-.docs.example.com/", "is no name of a host"),
        ("https:///path", "is no name of a host"),
        ("https://127.0.0.1/", "is not allowed"),
        ("https://2130706433/", "is not allowed"),
        ("https://api.example.com/" + "a" * 2_000, "at most 2000"),
    ],
)
def test_what_is_not_allowed_by_name_is_refused(url: str, told: str) -> None:
    with pytest.raises(RefusedAddressError) as caught:
        POLICY.vet_url(url)
    assert told in str(caught.value)


async def test_one_address_that_is_private_spoils_all_and_the_name_is_asked_for_once() -> None:
    asked = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return answers

    target = POLICY.vet_url("https://api.example.com/")
    answers: Sequence[str] = ("8.8.8.8", "8.8.8.8", "1.1.1.1")
    assert list(await POLICY.vet_addresses(target, resolve)) == ["8.8.8.8", "1.1.1.1"]
    for bad in (("8.8.8.8", "127.0.0.1"), ("::1",), ("fe80::1%2",)):
        answers = bad
        with pytest.raises(RefusedAddressError, match="may not be connected to"):
            await POLICY.vet_addresses(target, resolve)
    answers = ()
    with pytest.raises(RefusedAddressError, match="has no address"):
        await POLICY.vet_addresses(target, resolve)
    assert asked == [("api.example.com", 443)] * 5


async def test_an_address_as_host_is_not_resolved_and_still_looked_at() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        raise AssertionError

    policy = AddressPolicy(allow_hosts=("127.0.0.1", "8.8.8.8"))
    assert list(await policy.vet_addresses(policy.vet_url("https://8.8.8.8/"), resolve)) == ["8.8.8.8"]
    with pytest.raises(RefusedAddressError):
        await policy.vet_addresses(policy.vet_url("https://127.0.0.1/"), resolve)
