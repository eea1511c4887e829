"""The client in `examples/repair` against a real server, with a scripted model and the sandbox of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond import Client, SandboxLevel
from reasond_server.testing import FunctionModel, running_server_in_thread
from tests.conftest import IN_CI
from tests.integration.test_repair_projects import PROJECTS, read_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "repair" / "next_patch.py"
PROJECT = PROJECTS["python"]
# Another right edit of the same line.
OTHER = "    return price - (price * percent + 99) // 100"
CHECK = "python3 -c 'from prices import discount; assert discount(1000, 10) == 900 and discount(99, 50) == 49'"
LIMIT_S = 180.0


def _reply(request: ChatRequest) -> str:
    number = int(request.messages[-1].content.rpartition(" ")[2])
    return PROJECT.write_edit(PROJECT.right if number % 2 else OTHER)


@pytest.mark.parametrize(("said", "asked"), [("n\ny\n", 2), ("y\n", 1), ("n\nn\n", 2)])
def test_a_reviewer_takes_the_patch_that_pleases(tmp_path: Path, said: str, asked: int) -> None:
    for path, content in read_files("python").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    environ = {
        "REASOND__REPAIR__ENABLED": "true",
        "REASOND__REPAIR__NUM_CANDIDATES": "2",
        "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    }
    with running_server_in_thread(model=FunctionModel(_reply), environ=environ) as server:
        with Client(server.grpc, token=server.token) as client:
            if client.list_environments().level == SandboxLevel.SANDBOX_LEVEL_OFF:
                message = "no sandbox works here: install bubblewrap"
                pytest.fail(message) if IN_CI else pytest.skip(message)
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLE, tmp_path, CHECK],
            env={**os.environ, "REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token},
            input=said,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    shown = _list_added(done.stderr)
    assert len(shown) == asked
    assert set(shown) <= {PROJECT.right, OTHER}
    is_taken = "y" in said
    assert done.returncode == (0 if is_taken else 1), done.stderr
    assert _list_added(done.stdout) == (shown[-1:] if is_taken else [])


def _list_added(text: str) -> Sequence[str]:
    return [line[1:] for line in text.splitlines() if line.startswith("+ ")]
