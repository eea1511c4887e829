"""Programs that try to get out of the sandbox do not, at either level, as root and as a user without rights.

Each combination runs in a process of its own, from copies of the packages that any user may read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sandbox_escapes import files, processes
from tests.sandbox_escapes.driver import NOT_PLAINLY
from tests.sandbox_escapes.driving import choose_user, copied_packages, drive
from tests.sandboxing import LEVELS, require_level

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from reasond_server.types.repairs import SandboxLevel

PROGRAMS = {**files.PROGRAMS, **processes.PROGRAMS}
# As many get out where nothing holds them; the others fail for want of rights, of IPv6 or of a name server.
LEAST_PLAIN = 70


@pytest.fixture(scope="module")
def copies() -> Generator[Path, None, None]:
    with copied_packages() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.value)
def test_no_program_gets_out_harms_anything_or_lives_on(level: SandboxLevel, user: str, copies: Path) -> None:
    require_level(level)
    *outcomes, end = drive(level.value, choose_user(user), copies)
    assert "failure" not in end, end
    assert sorted(outcome["name"] for outcome in outcomes) == sorted(PROGRAMS)
    assert not [outcome for outcome in outcomes if "ESCAPED" in outcome["output"]]
    assert end == {"damage": [], "survivors": []}
    # A program that does not compile proves nothing.
    assert not [
        outcome for outcome in outcomes if "SyntaxError" in outcome["output"] or "NameError" in outcome["output"]
    ]


@pytest.mark.slow
def test_the_programs_are_worth_something_where_nothing_holds_them(copies: Path) -> None:
    outcomes = drive("none", choose_user("nobody"), copies)
    assert sorted(outcome["name"] for outcome in outcomes) == sorted(PROGRAMS.keys() - NOT_PLAINLY)
    out = [outcome["name"] for outcome in outcomes if "ESCAPED" in outcome["output"] or outcome["damage"]]
    assert len(out) >= LEAST_PLAIN, sorted(PROGRAMS.keys() - NOT_PLAINLY - set(out))
