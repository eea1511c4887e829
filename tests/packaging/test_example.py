"""The packages in `examples/` as third-party packages: they install, are found, serve, and fail well.

Its environment is clean except for the third-party dependencies, which it shares with the environment of the tests, so
that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from tests.packaging.environments import BUILD, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = ROOT / "examples" / "reasond-strategy-draft-and-critique"
PROVIDER = ROOT / "examples" / "reasond-context-open-points"
NAME = "draft_and_critique"
CONFIG = """
[server]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"

[reasoning]
default_strategy = "draft_and_critique"
enabled_strategies = ["draft_and_critique"]

[reasoning.strategies.draft_and_critique]
default_max_rounds = 1
max_allowed_rounds = 3
"""
WITHIN_S = 180.0


def succeed(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def home(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheels of the client, the server and the examples."""
    folder, home = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("example")
    for project in (EXAMPLE, PROVIDER):
        succeed(*BUILD, "--outdir", folder, project)
    venv.create(home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    succeed(*pip, "install", "-q", "--no-compile", "--no-index", "--no-deps", *wheels.values(), *folder.glob("*.whl"))
    packages = Path(succeed(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Found after its own packages. Editable installs are not found: they are .pth files of the other environment.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return home


@contextmanager
def serving(home: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Run `reasond serve` of the environment; yield the content of its ready file."""
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    ready = folder / "ready.json"
    known = {name: value for name, value in os.environ.items() if not name.startswith(("REASOND", "OPENAI"))}
    command: list[str | Path] = [
        home / "bin" / "reasond",
        "serve",
        "--dev",
        "--config",
        folder / "config.toml",
        "--ready-file",
        ready,
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=known, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield told_by(process, ready, folder / "log")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0, (folder / "log").read_text("utf-8")
    finally:
        process.kill()
        process.wait()


def told_by(process: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, Any]:
    """Wait until the server writes its addresses; fail with its log if it ends before."""
    limit = time.monotonic() + WITHIN_S
    while time.monotonic() < limit and process.poll() is None:
        with suppress(FileNotFoundError, ValueError):
            told: dict[str, Any] = json.loads(ready.read_text("utf-8"))
            return told
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    pytest.fail(f"the server did not get ready:\n{log.read_text('utf-8', 'replace')}")


def test_the_packages_of_the_environment_are_its_own(home: Path) -> None:
    places = succeed(
        home / "bin" / "python",
        "-c",
        "import reasond, reasond_server, reasond_draft_and_critique as example\n"
        "for module in (reasond, reasond_server, example): print(module.__file__)",
        cwd=home,
    )
    assert all(line.startswith(str(home)) for line in places.split())


@pytest.mark.parametrize("example", [EXAMPLE, PROVIDER], ids=lambda example: example.name)
def test_the_tests_of_the_example_pass_in_its_environment(home: Path, tmp_path: Path, example: Path) -> None:
    copied = tmp_path / "tests"
    copied.mkdir()
    for file in (example / "tests").glob("*.py"):
        (copied / file.name).write_bytes(file.read_bytes())
    pytest_in: list[str | Path] = [
        home / "bin" / "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:pytest_grpc",
    ]
    shown = succeed(*pytest_in, "-c", example / "pyproject.toml", "--rootdir", tmp_path, copied, cwd=tmp_path)
    assert " passed" in shown


def test_it_serves_over_grpc_with_its_schema_config_steps_metrics_and_errors(home: Path, tmp_path: Path) -> None:
    with (
        serving(home, tmp_path) as ready,
        reasond.Client(ready["grpc"], token=ready["token"]) as client,
    ):
        (listed,) = client.list_strategies().strategies
        assert (listed.name, listed.is_default) == (NAME, True)
        assert json.loads(listed.ceilings_json) == {"max_rounds": 3}
        schema = json.loads(listed.config_schema_json)["properties"]
        assert (schema["max_rounds"]["default"], schema["max_rounds"]["maximum"]) == (1, 3)
        assert listed.cost_class == reasond.CostClass.COST_CLASS_LINEAR
        assert "max_rounds" in listed.cost_formula

        result = client.reason(
            "What is 15% of 240?",
            strategy=NAME,
            config={"max_rounds": 2, "max_tokens": 200},
            trace_view=reasond.TraceView.TRACE_VIEW_FULL,
        )
        assert result.answer == "36"
        assert result.strategy_used == NAME
        kinds = [step.custom["kind"] for step in result.trace]
        assert kinds[0] == "draft"
        assert set(kinds[1:]) <= {"critique", "revision"}
        assert result.metrics.custom["rounds"] in {1, 2}

        for config, field in (({"max_rounds": 4}, "max_rounds"), ({"rounds": 1}, "rounds")):
            with pytest.raises(reasond.InvalidRequestError) as refused:
                client.reason("Why?", strategy=NAME, config=config)
            assert refused.value.reason == "INVALID_CONFIG"
            assert refused.value.violations[0].field == f"task.custom.{field}"
