from __future__ import annotations

import pytest

from reasond_server.access.peers import PeerRule, Peers
from reasond_server.types import Principal

EXECUTE = frozenset({"reasoning:execute"})
PEERS = Peers(
    trust_domain="example.org",
    rules=[
        PeerRule(path="/ns/prod/sa/worker", permissions=EXECUTE, tenant="acme"),
        PeerRule(path="/ns/prod/*", permissions=frozenset()),
    ],
)
WORKER = "spiffe://example.org/ns/prod/sa/worker"


def test_the_first_rule_whose_path_matches_says_what_a_peer_may() -> None:
    assert PEERS.recognise([WORKER]) == Principal(subject=WORKER, tenant="acme", permissions=EXECUTE)
    other = "spiffe://example.org/ns/prod/sa/other"
    assert PEERS.recognise([other]) == Principal(subject=other, tenant=f"sub:{other}", permissions=frozenset())


@pytest.mark.parametrize(
    "uris",
    [
        [],
        [WORKER, WORKER],
        [WORKER, "spiffe://example.org/ns/prod/sa/other"],
        ["spiffe://example.com/ns/prod/sa/worker"],
        ["spiffe://EXAMPLE.org/ns/prod/sa/worker"],
        ["https://example.org/ns/prod/sa/worker"],
        ["spiffe://example.org"],
        ["spiffe://example.org/ns/test/sa/worker"],
        ["spiffe://example.org/ns/prod/../prod/sa/worker"],
        ["spiffe://example.org/ns/prod/sa/worker/"],
        ["spiffe://example.org/ns/prod//worker"],
        ["spiffe://example.org/ns/prod/sa/worker?x"],
        ["spiffe://example.org/ns/prod/sa/%77orker"],
        ["spiffe://user@example.org/ns/prod/sa/worker"],
        ["spiffe://example.org/ns/prod/sa/worker\n"],
        ["spiffe://example.org/ns/prod/" + "a" * 2048],
    ],
)
def test_whoever_is_not_meant_is_nobody(uris: list[str]) -> None:
    assert PEERS.recognise(uris) is None


def test_without_a_trust_domain_nobody_is_known() -> None:
    assert Peers().recognise([WORKER]) is None
