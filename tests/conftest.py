"""Shared by all tests: a clean environment, fixtures for optional programs, and one real development server."""

from __future__ import annotations

import os

# Before anything imports grpc: else it starts threads in each process that a test forks, where they may crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import gc
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psycopg
import pytest
from hypothesis import settings

from reasond_server.assembly.stores import migrate_stores
from reasond_server.storage import postgres_pool
from reasond_server.storage.revisions import TABLES
from tests.engines.postgres import is_postgres_here, running_postgres
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from tests.engines.postgres import PostgresServer
    from tests.engines.serving import Engine

    StartEngine = Callable[..., Engine]

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROGRAMS = os.pathsep.join([str(BIN), str(ROOT / ".cache" / "bin"), os.environ.get("PATH", os.defpath)])
FOREIGN_SETTINGS = ("REASOND", "OPENAI_")
START_LIMIT_S = 180.0
STOP_LIMIT_S = 180.0
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

settings.register_profile("reasond", deadline=None, derandomize=IN_CI, print_blob=True)
# By hand: pytest --hypothesis-profile many --timeout 0 tests/property/FILE
settings.register_profile("many", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile("reasond")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the tests of the generated sync stubs only in the run that has pytest-grpc."""
    if collection_path.name == "test_generated_stubs.py" and not config.pluginmanager.hasplugin("pytest_grpc"):
        return True
    return None


def pytest_configure() -> None:
    """Restore the Ctrl-C handler: a run that a shell starts in the background, and its children, would ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests with no garbage collection, and leave what they are made of out of every later one.

    Modules and tests live until the end. To look through them took a third of the processor time of collecting them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _without_foreign_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the developer's own settings and database from the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name in list(os.environ):
            if name.startswith(FOREIGN_SETTINGS):
                patch.delenv(name)
        patch.setenv("PATH", PROGRAMS)
        yield


@pytest.fixture(scope="session")
def required_program() -> Callable[[str], str]:
    """Return a function from a program's name to its path; if it is missing, the test is skipped, or fails in CI."""

    def find(name: str) -> str:
        path = shutil.which(name, path=PROGRAMS)
        if path is not None:
            return path
        message = f"{name} is not installed here (make test installs what Go can build into .cache/bin)"
        if IN_CI:
            pytest.fail(message)
        pytest.skip(message)

    return find


@pytest.fixture(scope="session")
def grpcurl(required_program: Callable[[str], str]) -> str:
    """The path of grpcurl."""
    return required_program("grpcurl")


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Return a function from the name of a chain (and `slots`, `window`) to a running llama.cpp server.

    All tests of the session share the servers. Without the engine the test is skipped, or fails in CI.
    """
    folder = tmp_path_factory.mktemp("engines")
    running: dict[tuple[str, int, int], Engine] = {}
    missing = [name for name in ("xllamacpp", "gguf", "numpy") if importlib.util.find_spec(name) is None]
    with ExitStack() as stack:

        def start(chain: str, *, slots: int = 2, window: int = 4096) -> Engine:
            if missing:
                message = f"{', '.join(missing)} not installed here (make test installs it)"
                if IN_CI:
                    pytest.fail(message)
                pytest.skip(message)
            key = (chain, slots, window)
            if key not in running:
                running[key] = stack.enter_context(running_engine(chain, folder=folder, slots=slots, window=window))
            return running[key]

        yield start


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL for the whole session; if it is missing, the test is skipped, or fails in CI."""
    if not is_postgres_here():
        message = "PostgreSQL is not installed here (make test installs Debian's, as root)"
        if IN_CI:
            pytest.fail(message)
        pytest.skip(message)
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def _migrated_url(postgres: PostgresServer) -> str:
    """A database with the schema of this release."""
    url = postgres.new_database()
    migrate_stores(url=url, data_dir="")
    return url


@pytest.fixture
def postgres_url(_migrated_url: str) -> str:
    """The address of an empty database with the schema of this release."""
    with psycopg.connect(_migrated_url, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(sorted(TABLES))}".encode())
    return _migrated_url


@pytest.fixture
def patient_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs wait longer for a connection than the two seconds of a server: a busy machine may need them."""
    monkeypatch.setattr(postgres_pool, "_CONNECT_TIMEOUT_S", 100)


@pytest.fixture(scope="session")
def dev_server(
    tmp_path_factory: pytest.TempPathFactory, _without_foreign_settings: None
) -> Iterator[Mapping[str, str]]:
    """A real `reasond serve --dev` on free ports: its addresses `grpc` and `http`, and a `token`."""
    folder = tmp_path_factory.mktemp("server")
    ready = folder / "ready.json"
    chosen = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}
    quick = {"REASOND__SERVER__DRAIN_DELAY_S": "0", "REASOND__A2A__ENABLED": "true"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / "reasond", "serve", "--dev", "--ready-file", ready],
            cwd=folder,
            env={**os.environ, **chosen, **quick},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _addresses(process, ready, folder / "log")
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_S) == 0, (folder / "log").read_text("utf-8")
    finally:
        process.kill()
        process.wait()


def _addresses(process: subprocess.Popen[bytes], ready: Path, log: Path) -> Mapping[str, str]:
    """Wait until the server writes its addresses; fail with its log if it ends before."""
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            told = cast("dict[str, str]", json.loads(ready.read_text("utf-8")))
            return {**told, "http": told["http"].removeprefix("http://")}
        except (FileNotFoundError, ValueError):
            _ended_within(process, 0.05)
    pytest.fail(f"the server did not get ready:\n{log.read_text('utf-8', 'replace')}")


def _ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether `process` ends within `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
