"""Both wheels, built from this tree, work in clean environments and install no unwanted dependencies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from tests.packaging.environments import ROOT, SERVER, fill_wheelhouse, new_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CONSTRAINTS = ROOT / "constraints.txt"
BACKEND = """
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.openai.backend_options import BackendOptions

assert build_model(BackendOptions(name="llm", model="m", base_url="http://127.0.0.1:1/v1")).name == "m"
"""
STORE = """
from reasond_server.assembly.stores import examine_stores, migrate_stores

migrate_stores(url="", data_dir="here")
assert examine_stores(url="", data_dir="here") == "SQLite, here/reasond.db"
"""
OBSERVED = """
import asyncio, importlib.util, io, logging
from reasond_server.telemetry.exposition import Exposition
from reasond_server.telemetry.logs import build_human_formatter, build_json_formatter
from reasond_server.telemetry.meters import Meters
from reasond_server.telemetry.observers import ServerSnapshot
from reasond_server.telemetry.catalogue import Vocabulary

metrics = Meters(vocabulary=Vocabulary(words={}), version="1")
metrics.call_ended("grpc", "Reason", "OK", 0.03)
exposition = Exposition(registry=metrics.registry, before=lambda: metrics.sample(ServerSnapshot()))
for accept in ("text/plain", "application/openmetrics-text"):
    assert b"reasond_calls_total{" in asyncio.run(exposition.scrape([accept])).body
record = logging.makeLogRecord({"msg": "told", "levelname": "INFO", "levelno": 20, "name": "reasond", "code": "OK"})
assert '"code":"OK"' in build_json_formatter().format(record)
assert "told" in build_human_formatter(has_colors=True).format(record)
"""
TRACED = """
import threading
from concurrent import futures
import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from reasond_server.telemetry.span_export import TracingOptions, build_sink
from reasond_server.telemetry.propagation import parse_traceparent

came = []

class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        came.extend(span.name for each in request.resource_spans for one in each.scope_spans for span in one.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

server = grpc.server(futures.ThreadPoolExecutor(1))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
environ = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=1"}
sink = build_sink(TracingOptions(endpoint=f"http://127.0.0.1:{port}", environ=environ))
tracing, caller = sink.tracing, parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01", "vendor=1")
served = tracing.serve("serve", {"one": 1}, caller=None, links=[caller])
run = tracing.run("run", {}, parent=served.context, links=[caller])
tracing.call("call", {"many": ("a", "b")}, parent=run).end()
run.link(caller)
run.fail("MODEL_FAILED")
run.end()
served.end()
asyncio.run(sink.aclose(within_s=120))
assert sorted(came) == ["call", "run", "serve"], came
server.stop(0).wait()
"""
CONSOLE = """
from reasond_server.console.console_pages import build_console_pages

assert {"/console", "/console/app.js", "/console/console.css", "/console/preact.js"} <= set(build_console_pages())
"""
LOWER_BOUND = re.compile(r"([A-Za-z0-9_-]+(?:\[[a-z]+\])?)>=([0-9.]+)")
MAX_BASE_BYTES = 42_000_000

ROUND_TRIP = """
import grpc
import reasond
from google.rpc import error_details_pb2
from reasond.v1 import agent_service_pb2_grpc, execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc

request = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query="2 + 2"), request_id="a")
assert reasoning_service_pb2.ReasonRequest.FromString(request.SerializeToString()) == request
with grpc.insecure_channel("127.0.0.1:1") as channel:
    assert reasoning_service_pb2_grpc.ReasoningServiceStub(channel).Reason
    assert agent_service_pb2_grpc.AgentServiceStub(channel).GetAgentCard
assert error_details_pb2.ErrorInfo(reason="INTERNAL").reason == "INTERNAL"
"""


def lowest(project: Path, *extras: str) -> list[str]:
    """Return pip's arguments for the lowest versions of all dependencies of `project`, including `extras`."""
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*told["dependencies"], *(entry for extra in extras for entry in told["optional-dependencies"][extra])]
    return [f"{bound[1]}=={bound[2]}" for entry in declared if (bound := LOWER_BOUND.match(entry))]


@pytest.fixture(scope="module")
def server_wheelhouse(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the server's wheel and the wheels of all its dependencies."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    fill_wheelhouse(folder, wheels.values(), "-c", str(CONSTRAINTS))
    return folder


def test_the_wheel_of_the_server_installs_its_manual_page(wheels: dict[str, Path]) -> None:
    with ZipFile(wheels["reasond-server"]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("share/man/man1/reasond.1")]
        assert wheel.read(name) == (ROOT / "docs" / "reasond.1").read_bytes()


def test_the_server_works_with_the_lowest_versions_that_it_declares(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment, house = new_environment(tmp_path / "lowest-server"), tmp_path / "house"
    house.mkdir()
    fill_wheelhouse(house, wheels.values(), *lowest(SERVER, "otel"))
    offline = ("--no-index", "--find-links", house)
    environment.install(*offline, *lowest(SERVER), *wheels.values())
    assert environment.distributions()["pydantic"].startswith("2.12")
    environment.run(
        "python",
        "-c",
        ROUND_TRIP + "import reasond_server.assembly.app, reasond_server.testing\n" + BACKEND + STORE + CONSOLE,
    )
    assert "serve" in environment.run("reasond", "--help")
    environment.run("python", "-c", OBSERVED)
    environment.install(*offline, *lowest(SERVER, "otel"))
    environment.run("python", "-c", OBSERVED + TRACED)
    installed = environment.distributions()
    declared = dict(pin.split("==") for pin in lowest(SERVER, "otel"))
    for name in ("prometheus-client", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc"):
        assert installed[name.replace("-", "_") if name == "prometheus-client" else name].startswith(declared[name])


def test_the_server_installs_from_its_wheels_starts_its_command_and_makes_its_store(
    server_wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = new_environment(tmp_path / "server")
    environment.install("--no-index", "--find-links", server_wheelhouse, "reasond-server")
    assert "serve" in environment.run("reasond", "--help")
    environment.run(
        "python", "-W", "error", "-c", ROUND_TRIP + "import reasond_server.assembly.app, reasond_server.testing\n"
    )
    environment.pip("check")
    # The wheel must contain the migrations, because Alembic reads them from files.
    monkeypatch.setenv("REASOND__STORE__URL", f"sqlite:///{tmp_path}/here/reasond.db")
    for _ in range(2):
        assert "has the schema of this release" in environment.run("reasond", "migrate")
    assert "ok    store" in environment.run("reasond", "doctor")


@pytest.fixture(scope="module")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where uv unpacks the wheels, once for all of its environments."""
    return tmp_path_factory.mktemp("uv")


@pytest.mark.parametrize(("source", "command"), [("reasond-server", "reasond-server"), ("reasond[server]", "reasond")])
def test_uv_runs_the_command_from_the_wheels(
    server_wheelhouse: Path, uv_cache: Path, tmp_path: Path, source: str, command: str
) -> None:
    run = [sys.executable, "-m", "uv", "tool", "run", "--no-index", "--find-links", str(server_wheelhouse)]
    environ = {**os.environ, "UV_CACHE_DIR": str(uv_cache), "UV_TOOL_DIR": str(tmp_path / "tools")}
    environ["UV_PYTHON"] = sys.executable
    done = subprocess.run(
        [*run, "--from", source, command, "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "serve" in done.stdout


def test_the_base_install_stays_below_42_megabytes_without_numpy(
    server_wheelhouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {path.name: path.stat().st_size for path in server_wheelhouse.iterdir()}
    with capsys.disabled():
        sys.stdout.write(f"\nnote: the base install is {len(sizes)} wheels of {sum(sizes.values()) / 1e6:.1f} MB\n")
    assert sum(sizes.values()) < MAX_BASE_BYTES
    assert not [name for name in sizes if name.startswith("numpy")]


def test_the_wheels_hold_no_foreign_package(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        listed = subprocess.run(
            [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True
        ).stdout
        tops = {line.split()[0].partition("/")[0] for line in listed.splitlines()[1:]}
        package = name.replace("-", "_")
        # The manual page is data of the distribution.
        data = {top for top in tops if top.startswith(f"{package}-") and top.endswith((".dist-info", ".data"))}
        assert tops - data == {package}
