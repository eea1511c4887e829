"""Commands of `reasond` that share their imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.forked_commands import run_forking_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.forked_commands import ForkedCommands


@pytest.fixture(scope="session")
def forked_commands() -> Iterator[ForkedCommands]:
    """The process that runs commands in forks of itself."""
    with run_forking_process() as commands:
        yield commands
