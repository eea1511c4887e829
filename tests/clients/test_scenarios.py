"""The scenarios that every client passes."""

from __future__ import annotations

from collections import Counter

from tests.clients.client_tests import read_share
from tests.clients.drivers import DRIVERS

CUTS = 200


def test_every_language_has_200_cuts() -> None:
    cuts: Counter[str] = Counter()
    for program in DRIVERS:
        cuts[program.language.split()[0]] += sum(each.faults.cuts for each in read_share(program))
    assert set(cuts.values()) == {CUTS}
