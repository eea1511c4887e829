"""The tests of every client: the same scenarios against a real server, however its connections are cut.

A client has a module with a subclass, so that one worker of `--dist loadfile` has all of its tests. (Groups of
pytest-xdist 3.8 are ignored by pytest 9.2: pytest-dev/pytest-xdist#1386.)
"""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

import pytest

from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.reasons import build_error
from tests.clients.building import run_commands, run_if_changed
from tests.clients.refused_calls import ask_refused
from tests.clients.scenario_run import run_scenarios
from tests.clients.scenarios import read_cuts, read_scenarios

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.assembly.app import Listening
    from tests.clients.drivers import DriverProgram
    from tests.clients.scenarios import Scenario

TOLD = 5
# More than twice what the service config waits before the first two retries: 0.36 s and 1.44 s at most.
WAIT_S = 3.0


def tell(scenarios: Sequence[Scenario], problems: Mapping[str, Sequence[str]]) -> str:
    """Return what is wrong with the first of these scenarios that failed; nothing if none did."""
    told = [f"{each.name}: {'; '.join(problems[each.name])}" for each in scenarios if problems[each.name]]
    return "\n".join([f"{len(told)} scenarios failed", *told[:TOLD]]) if told else ""


def read_share(program: DriverProgram) -> list[Scenario]:
    """Return the streams whose connections are cut that a driver reads."""
    place, runtimes = program.cut_share
    return read_cuts()[place::runtimes]


@cache
def find_problems(program: DriverProgram) -> Mapping[str, Sequence[str]]:
    """Run all scenarios, and then the streams whose connections are cut, with one driver; return what is wrong."""
    with TemporaryDirectory() as folder:
        return asyncio.run(run_scenarios(program, (read_scenarios(), read_share(program)), Path(folder)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
class ClientTests:
    """What each client passes; `language` names its rows in `drivers.py`."""

    language: ClassVar[str]

    def test_the_client_passes_every_scenario(self, driver: DriverProgram) -> None:
        assert not tell(read_scenarios(), find_problems(driver))

    def test_the_client_reports_every_event_once_over_its_cuts(self, driver: DriverProgram) -> None:
        assert not tell(read_share(driver), find_problems(driver))

    def test_no_retry_comes_before_the_time_that_the_server_tells(self, driver: DriverProgram, tmp_path: Path) -> None:
        refusals = [OverloadedError("full", retry_after_s=WAIT_S) for _ in range(2)]

        answer, arrivals = asyncio.run(ask_refused(driver, refusals, tmp_path))

        waits = [after - before for before, after in pairwise(arrivals)]
        assert (answer["outcome"], len(waits)) == ("ok", len(refusals))
        assert min(waits) >= WAIT_S, waits

    def test_no_retry_comes_where_it_cannot_help(self, driver: DriverProgram, tmp_path: Path) -> None:
        answer, arrivals = asyncio.run(ask_refused(driver, [build_error("OVERLOADED", "it was full")], tmp_path))

        assert (answer["outcome"], answer["reason"], len(arrivals)) == ("error", "OVERLOADED", 1)

    def test_the_client_passes_its_own_checks(self, driver: DriverProgram) -> None:
        run_if_changed(driver, driver.checks)

    def test_the_examples_of_the_client_run(self, driver: DriverProgram, example_server: Listening) -> None:
        run_commands(driver, driver.examples, REASOND_TARGET=example_server.grpc, REASOND_TOKEN=example_server.token)

    def test_the_example_of_a_repair_prints_the_patch(self, driver: DriverProgram, repair_server: Listening) -> None:
        server = {"REASOND_TARGET": repair_server.grpc, "REASOND_TOKEN": repair_server.token}
        assert "-    return a - b\n+    return a + b\n" in run_commands(driver, (driver.repair,), **server)
