"""The drivers of the clients, built, and servers of their examples in this process, where they start sooner."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond_server.testing import FunctionModel, running_server_in_thread
from tests.clients.building import run_if_changed
from tests.clients.drivers import DRIVERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.assembly.app import Listening
    from tests.clients.drivers import DriverProgram

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a client with each of its drivers; those of a repair where there is such an example."""
    if "driver" in metafunc.fixturenames and metafunc.cls is not None:
        programs = [each for each in DRIVERS if each.language.split()[0] == metafunc.cls.language]
        if "repair_server" in metafunc.fixturenames:
            programs = [each for each in programs if each.repair]
        metafunc.parametrize("driver", programs, ids=[each.language for each in programs], indirect=True)


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> DriverProgram:
    """The driver of a client, built."""
    program: DriverProgram = request.param
    if missing := [name for name in program.needs if shutil.which(name) is None]:
        message = f"the client of {program.language} needs {', '.join(missing)}, which are not installed here"
        if IN_CI:
            pytest.fail(message)
        pytest.skip(message)
    run_if_changed(program, program.build)
    return program


@pytest.fixture(scope="session")
def example_server() -> Iterator[Listening]:
    """A server with the demo model."""
    with running_server_in_thread() as server:
        yield server


@pytest.fixture(scope="session")
def repair_server() -> Iterator[Listening]:
    """A server that repairs in the sandbox of the machine, with a model that knows the patch of the examples."""
    edit = "<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE"
    environ = {"REASOND__REPAIR__ENABLED": "true", "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python"}
    model = FunctionModel(lambda _request: f"calc.py\n```python\n{edit}\n```\n")
    with running_server_in_thread(model=model, environ=environ) as server:
        with reasond.Client(server.grpc, token=server.token) as client:
            if client.list_environments().level == reasond.SandboxLevel.SANDBOX_LEVEL_OFF:
                message = "no sandbox works here: install bubblewrap"
                pytest.fail(message) if IN_CI else pytest.skip(message)
        yield server
